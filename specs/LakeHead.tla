---- MODULE LakeHead ----
\* The same where an older version is the newest again.
EXTENDS Lake
====
