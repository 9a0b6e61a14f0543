---- MODULE TwoPhaseUnsure ----
\* A target that cannot tell what it committed from what it never had.
EXTENDS TwoPhase
====
