---- MODULE TwoPhaseSegments ----
\* Two segments, each committed by itself.
EXTENDS TwoPhase
====
