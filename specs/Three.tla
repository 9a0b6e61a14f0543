---- MODULE Three ----
\* Two successions: the committer in the middle only claims its term and crashes; the first goes on beside the third.
EXTENDS WalSink
MCServes == [r \in 1..3 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<2>>, <<>>>>
MiddleCrashes == C[2]["a"].pc \in {"claim", "load"}
====
