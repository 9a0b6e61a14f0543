---- MODULE TransactionalGroups ----
\* A transactional sink, whose batches each have a marker, also where other sinks are served in groups.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "transactional"]
MCShape == <<<<1, 1>>, <<1>>, <<1>>>>
====
