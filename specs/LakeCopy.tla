---- MODULE LakeCopy ----
\* A table of which an older copy comes back, and a catch-up.
EXTENDS Lake
====
