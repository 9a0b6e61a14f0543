---- MODULE TwoPhaseSegments ----
\* Two segments, each published by itself.
EXTENDS TwoPhase
====
