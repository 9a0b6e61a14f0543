---- MODULE Liveness ----
\* A committer that runs marks every completed batch, whatever two others left.
EXTENDS WalSink
MCServes == [r \in 1..3 |-> IF r = 1 THEN {} ELSE {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<2>>, <<>>>>
====
