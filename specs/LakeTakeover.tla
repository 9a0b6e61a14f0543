---- MODULE LakeTakeover ----
\* Two takeovers, groups, requests without an answer, commits of somebody else.
EXTENDS Lake
====
