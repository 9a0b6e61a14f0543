---- MODULE LostTerms ----
\* The same where earlier processes claimed terms of both roles.
EXTENDS LostObjects
====
