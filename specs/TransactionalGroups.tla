---- MODULE TransactionalGroups ----
\* A transactional sink, whose batches each have a marker of their own whatever groups other sinks are served in.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "transactional"]
MCShape == <<<<1, 1>>, <<1>>, <<1>>>>
====
