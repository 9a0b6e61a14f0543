---- MODULE Idempotent ----
\* An idempotent sink, taken over and collected.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "idempotent"]
MCShape == <<<<2>>, <<>>>>
====
