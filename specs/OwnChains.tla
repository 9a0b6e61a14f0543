---- MODULE OwnChains ----
\* Runs whose own foreachBatch calls `stage`, so that they claim a term inside their first batch, and a committer elsewhere.
EXTENDS WalSink
MCServes == (1 :> {} @@ 2 :> {"a"} @@ 3 :> {})
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>>>
====
