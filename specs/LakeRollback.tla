---- MODULE LakeRollback ----
\* A table whose rows go back while the position stays, as a new version, and a catch-up.
EXTENDS Lake
====
