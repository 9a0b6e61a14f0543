---- MODULE Collect ----
\* Committers stall while collecting; then a checkpoint is restored beyond low water.
EXTENDS WalSink
MCServes == <<{"a"}, {"a"}>>
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>, <<>>, <<>>>>
AfterAll == ck.h > 1 => \A b \in Batches : G.marked[<<"a", b>>] # 0
====
