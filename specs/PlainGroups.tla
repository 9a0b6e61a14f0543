---- MODULE PlainGroups ----
\* A plain sink, whose batches each have a marker of their own whatever groups other sinks are served in.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>, <<1>>>>
====
