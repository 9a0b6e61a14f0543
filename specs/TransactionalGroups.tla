---- MODULE TransactionalGroups ----
\* A transactional sink served in groups: its position runs ahead of the marker; taken over and collected.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "transactional"]
MCShape == <<<<1, 1>>, <<1>>, <<1>>>>
====
