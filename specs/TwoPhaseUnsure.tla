---- MODULE TwoPhaseUnsure ----
\* A target that cannot tell what it published from what it never had.
EXTENDS TwoPhase
====
