---- MODULE Drainer ----
\* Runs that only stage, and a committer elsewhere; a checkpoint is restored.
EXTENDS WalSink
MCServes == (1 :> {} @@ 2 :> {"a"} @@ 3 :> {})
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>>>
====
