---- MODULE Transactional ----
\* A transactional sink, segments side by side, taken over and collected.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "transactional"]
MCShape == <<<<2, 1>>, <<1>>>>
====
