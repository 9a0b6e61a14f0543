---- MODULE LostNew ----
\* Two processes on a WAL that was new, which then loses its eldest objects.
EXTENDS LostObjects
====
