---- MODULE Stagers ----
\* Two queries on one checkpoint that nobody touches, one of them the user's own chain; what they stage is collected at once.
EXTENDS WalSink
MCServes == (1 :> {} @@ 2 :> {"a"})
MCKind == [s \in {"a"} |-> "plain"]
MCShape == <<<<1>>, <<>>>>
====
