---- MODULE IdempotentGroups ----
\* An idempotent sink served in groups: one marker for up to two batches; taken over and collected.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "idempotent"]
MCShape == <<<<2>>, <<1>>, <<>>, <<>>>>
====
