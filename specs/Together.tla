------------------------------ MODULE Together ------------------------------
(***************************************************************************)
(* Everything at once, in little: two drivers, each with a query that      *)
(* stages and a committer for each of two sinks, three batches, collection.*)
(* Any of the six may stall at any point, for ever or to wake up as a      *)
(* zombie.  WalSink.tla shows each part of this in more detail; README.md  *)
(* says what is left out here.                                             *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Runs,       \* Two drivers, alike: which comes first is not fixed.
    Sinks,      \* Two plain sinks, alike.
    NB,         \* Batches, each of one segment and one chunk.
    Retention,
    Ahead,      \* Settings.max_pending_batches: batches a run has staged and not delivered before it stages the next.
    BUG

None == "none"
Batches == 0 .. (NB - 1)
Max(set) == CHOOSE x \in set : \A y \in set : y <= x
Min(set) == CHOOSE x \in set : \A y \in set : x <= y

VARIABLES
    off, done,  \* Batches that Spark planned; that it completed.
    man,        \* By batch: the runs that have a manifest of it.
    rel,        \* By batch: whose attempt was released, and by whom.
    mark,       \* By sink: its markers.
    low,        \* Low water.
    top,        \* By sink, and for the stagers: the highest term claimed.
    st,         \* By run: its query and stager.
    cm,         \* By run and sink: its committer.
    cnt,        \* By sink and batch: how often it took effect.
    tags,       \* By batch: the attempts whose rows were sent.
    had,        \* By sink: batches that ever had a marker.
    bad         \* Laws broken by an action.

vars == <<off, done, man, rel, mark, low, top, st, cm, cnt, tags, had, bad>>
spark == <<off, done>>
ghosts == <<cnt, tags, had>>

NoRelease == <<None, None>>
Init ==
    /\ off = 0 /\ done = 0 /\ low = -1
    /\ man = [b \in Batches |-> {}]
    /\ rel = [b \in Batches |-> NoRelease]
    /\ mark = [s \in Sinks |-> {}]
    /\ top = [x \in Sinks \cup {"stager"} |-> 0]
    /\ st = [r \in Runs |-> [pc |-> "off", b |-> 0, term |-> 0]]
    /\ cm = [r \in Runs |-> [s \in Sinks |-> [pc |-> "claim", b |-> -1, att |-> None, seen |-> FALSE,
                                              term |-> 0, marked |-> -1, late |-> FALSE]]]
    /\ cnt = [s \in Sinks |-> [b \in Batches |-> 0]]
    /\ tags = [b \in Batches |-> {}]
    /\ had = [s \in Sinks |-> {}]
    /\ bad = {}

Newest(s) == Max({-1} \cup mark[s])

-----------------------------------------------------------------------------
(* The query of a run, and its stager *)

St(r, pc) == st' = [st EXCEPT ![r].pc = pc, ![r].b = IF pc = "dead" THEN 0 ELSE @]
QuietStager == UNCHANGED <<man, rel, mark, low, cm, ghosts>>

\* Low water, the release, low water again.  A batch that was collected is another query's doing, as nobody restores
\* checkpoints here.
Looked(r) == LET b == st[r].b IN IF b <= low THEN "dead" ELSE IF rel[b] # NoRelease THEN "commit" ELSE "write"

\* The term, what is known of the WAL, and Spark's choice of the first batch.
BecomeStager(r) ==
    /\ st[r].pc = "off" /\ \A s \in Sinks : cm[r][s].pc # "claim"
    /\ top' = [top EXCEPT !["stager"] = @ + 1]
    /\ st' = [st EXCEPT ![r].pc = IF off > done THEN "again" ELSE "plan", ![r].term = top["stager"] + 1, ![r].b = done]
    /\ UNCHANGED <<spark, bad>> /\ QuietStager

\* walsink.WalSink._has_room
HasRoom(r) == Cardinality({b \in Batches : b < st[r].b /\ r \in man[b] /\ \E s \in Sinks : cm[r][s].marked < b}) < Ahead

\* Spark writes offsets/N, or finds those of a batch that was planned and not completed, or another query's and dies.
Plan(r) ==
    /\ st[r].pc = "plan" /\ st[r].b < NB /\ HasRoom(r)
    /\ IF off = st[r].b THEN off' = off + 1 /\ St(r, Looked(r)) ELSE St(r, "dead") /\ UNCHANGED off
    /\ UNCHANGED <<done, top, bad>> /\ QuietStager

StageAgain(r) ==
    /\ st[r].pc = "again"
    /\ St(r, Looked(r))
    /\ bad' = IF st[r].b <= low /\ top["stager"] = st[r].term /\ done <= st[r].b THEN bad \cup {"NoFalseAlarm"} ELSE bad
    /\ UNCHANGED <<spark, top>> /\ QuietStager

StageManifest(r) ==
    /\ st[r].pc = "write"
    /\ man' = [man EXCEPT ![st[r].b] = @ \cup {r}]
    /\ St(r, "commit")
    /\ UNCHANGED <<spark, rel, mark, low, top, cm, ghosts, bad>>

SparkCommit(r) ==
    /\ st[r].pc = "commit"
    /\ IF done = st[r].b
       THEN done' = done + 1 /\ st' = [st EXCEPT ![r].pc = "plan", ![r].b = @ + 1]
       ELSE St(r, "dead") /\ UNCHANGED done
    /\ UNCHANGED <<off, top, bad>> /\ QuietStager

-----------------------------------------------------------------------------
(* A committer *)

Cm(r, s, c) == cm' = [cm EXCEPT ![r][s] = c]
Go(r, s, pc) == cm' = [cm EXCEPT ![r][s].pc = pc]
Store == UNCHANGED <<man, rel, mark, low, top>>
Quiet == UNCHANGED <<spark, st, ghosts>>
Superseded(r, s) == top[s] > cm[r][s].term

Gone(c) == [c EXCEPT !.pc = "gone", !.b = -1, !.att = None, !.seen = FALSE, !.late = FALSE, !.marked = -1]
Passed(c, b) == [c EXCEPT !.pc = "idle", !.marked = b, !.b = -1, !.att = None, !.seen = FALSE]

\* The term, and the newest marker.
Claim(r, s) ==
    /\ cm[r][s].pc = "claim"
    /\ top' = [top EXCEPT ![s] = @ + 1]
    /\ cm' = [cm EXCEPT ![r][s].pc = "idle", ![r][s].term = top[s] + 1, ![r][s].marked = Newest(s)]
    /\ Quiet /\ UNCHANGED <<man, rel, mark, low, bad>>

Highest(runs) == CHOOSE r \in runs : \A x \in runs : st[x].term <= st[r].term

\* The work of an older process on a batch that it released: the marker, then the newest one.
Taken(r, s, c, b) ==
    LET d == [c EXCEPT !.b = b, !.att = rel[b][1], !.seen = b \in had[s]]
    IN IF BUG = "second_read_missing" THEN [d EXCEPT !.pc = "check"]
       ELSE IF b \in mark[s] THEN Passed(c, b)
       ELSE IF Newest(s) >= b THEN Passed(c, Newest(s))
       ELSE [d EXCEPT !.pc = "check"]

\* The gate, the term, the release or else the highest manifest (its own, if this run staged the batch), the release.
Decide(r, s) ==
    LET c == cm[r][s]
        b == c.marked + 1
        fenced == Superseded(r, s) /\ BUG # "term_not_checked_at_release"
        att == IF r \in man[b] THEN r ELSE Highest(man[b])
        mine == [c EXCEPT !.b = b, !.pc = "send", !.seen = b \in had[s]]
    IN
    /\ c.pc = "idle" /\ b \in Batches
    /\ BUG = "delivers_before_all_terms_are_claimed" \/ \A x \in Sinks : cm[r][x].pc # "claim"
    /\ done > b \/ (BUG = "gate_ignored" /\ man[b] # {})
    /\ IF fenced THEN Cm(r, s, Gone(c)) /\ UNCHANGED <<rel, bad>>
       ELSE IF man[b] = {} THEN       \* collected, or lost: only a newer process can have done that
            /\ Cm(r, s, Gone(c)) /\ UNCHANGED rel
            /\ bad' = IF Superseded(r, s) THEN bad ELSE bad \cup {"NoFalseAlarm"}
       ELSE IF rel[b] = NoRelease \/ BUG = "release_not_pinned"
       THEN rel' = [rel EXCEPT ![b] = <<att, r>>] /\ Cm(r, s, [mine EXCEPT !.att = att]) /\ UNCHANGED bad
       ELSE IF rel[b][2] = r THEN Cm(r, s, [mine EXCEPT !.att = rel[b][1]]) /\ UNCHANGED <<rel, bad>>
       ELSE Cm(r, s, Taken(r, s, c, b)) /\ UNCHANGED <<rel, bad>>
    /\ Quiet /\ UNCHANGED <<man, mark, low, top>>

\* Of a batch that is taken over the term is read again.
TaskCheck(r, s) ==
    LET c == cm[r][s] IN
    /\ c.pc = "check"
    /\ Cm(r, s, IF Superseded(r, s) /\ BUG # "term_not_rechecked" THEN Gone(c) ELSE [c EXCEPT !.pc = "send"])
    /\ Quiet /\ Store /\ UNCHANGED bad

Repeats(counts) == LET sum[b \in -1 .. (NB - 1)] == IF b = -1 THEN 0 ELSE sum[b - 1] + Max({0, counts[b] - 1}) IN sum[NB - 1]

TaskSend(r, s) ==
    LET c == cm[r][s]
        gone == Superseded(r, s)
    IN
    /\ c.pc = "send"
    /\ cnt' = [cnt EXCEPT ![s][c.b] = @ + 1]
    /\ tags' = [tags EXCEPT ![c.b] = @ \cup {c.att}]
    /\ Cm(r, s, [c EXCEPT !.pc = "mark", !.late = gone])
    /\ bad' = bad \cup (IF done <= c.b THEN {"I1"} ELSE {})
                  \cup (IF ~gone /\ c.seen THEN {"I3"} ELSE {})
                  \cup (IF ~gone /\ \E b \in Batches : b < c.b /\ b \notin had[s] THEN {"I3"} ELSE {})
                  \cup (IF Repeats(cnt'[s]) > top[s] - 1 THEN {"I5"} ELSE {})
                  \cup (IF gone /\ c.late THEN {"I7"} ELSE {})
    /\ Store /\ UNCHANGED <<spark, st, had>>

CreateMarker(r, s) ==
    LET c == cm[r][s]
        fresh == c.b \notin mark[s]
    IN
    /\ c.pc = "mark"
    /\ mark' = [mark EXCEPT ![s] = @ \cup {c.b}]
    /\ had' = [had EXCEPT ![s] = @ \cup {c.b}]
    /\ Cm(r, s, IF fresh \/ ~Superseded(r, s) THEN Passed(c, c.b) ELSE Gone(c))
    /\ UNCHANGED <<spark, st, man, rel, low, top, cnt, tags, bad>>

-----------------------------------------------------------------------------
(* Collecting *)

\* The newest batch of every sink, the term, low water; between two batches, whenever there is something to collect.
RaiseLowWater(r, s) ==
    LET c == cm[r][s]
        everywhere == IF BUG = "undelivered_collected" THEN c.marked ELSE Min({Newest(x) : x \in Sinks})
        target == everywhere - Retention
    IN
    /\ c.pc = "idle" /\ target > low /\ ~Superseded(r, s)
    /\ low' = target
    /\ Cm(r, s, [c EXCEPT !.pc = "delete", !.b = target])
    /\ Quiet /\ UNCHANGED <<man, rel, mark, top, bad>>

Delete(r, s) ==
    LET c == cm[r][s] IN
    /\ c.pc = "delete"
    /\ man' = [b \in Batches |-> IF b <= c.b THEN {} ELSE man[b]]
    /\ rel' = [b \in Batches |-> IF b <= c.b THEN NoRelease ELSE rel[b]]
    /\ mark' = [x \in Sinks |-> {b \in mark[x] : b > c.b}]
    /\ Cm(r, s, [c EXCEPT !.pc = "idle", !.b = -1])
    /\ Quiet /\ UNCHANGED <<low, top, bad>>

-----------------------------------------------------------------------------

Next ==
    \E r \in Runs :
        \/ BecomeStager(r) \/ Plan(r) \/ StageAgain(r) \/ StageManifest(r) \/ SparkCommit(r)
        \/ \E s \in Sinks :
            \/ Claim(r, s) \/ Decide(r, s) \/ TaskCheck(r, s) \/ TaskSend(r, s) \/ CreateMarker(r, s)
            \/ RaiseLowWater(r, s) \/ Delete(r, s)

Spec == Init /\ [][Next]_vars

Alike == Permutations(Runs) \cup Permutations(Sinks)

(* The laws, as in WalSink.tla *)

I1_CompletedOnly == "I1" \notin bad
I2_NothingMissing == \A s \in Sinks : \A b \in had[s] : cnt[s][b] > 0
I3_MarkedOnceInOrder == "I3" \notin bad
I5_BoundedRepeats == "I5" \notin bad
I6_OneRelease ==
    \A b \in Batches :
        /\ Cardinality(tags[b]) <= 1
        /\ (tags[b] # {} /\ rel[b] = NoRelease) \/ b <= low => \A s \in Sinks : b \in had[s]
I7_SupersededIsHarmless == "I7" \notin bad
I8_NoSilentDivergence ==
    \A r \in Runs : \A s \in Sinks : \A b \in Batches :
        cm[r][s].pc = "idle" /\ ~Superseded(r, s) /\ b <= cm[r][s].marked => cnt[s][b] > 0
NoFalseAlarm == "NoFalseAlarm" \notin bad
=============================================================================
