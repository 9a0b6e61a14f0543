---- MODULE TwoPhaseOnly ----
\* Rows that are nowhere else (keep_segments=False).
EXTENDS TwoPhase
====
