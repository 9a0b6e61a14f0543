---- MODULE PlainGroups ----
\* A plain sink, whose batches each have a marker, also where other sinks are served in groups.
EXTENDS WalSink
MCServes == [r \in 1..2 |-> {"a"}]
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>, <<1>>>>
====
