---- MODULE History ----
\* Two drivers, each stager and committer; a checkpoint is restored, a query restarts in its process.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>>>
====
