---- MODULE TwoPhase ----
(***************************************************************************)
(* One batch on its way through one two-phase sink: prepared while it is   *)
(* staged, committed once it is complete, aborted where nobody will        *)
(* commit it.  What WalSink.tla checks of releases, terms and collection  *)
(* is taken as it is there.  A run stops for ever by taking no more steps, *)
(* or goes on after others took over.                                      *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    NRuns,       \* Lives of processes that deliver; they open one after the other.
    NAttempts,   \* How often Spark evaluates the batch, one attempt never waiting for another.
    NSegs,       \* Segments of each attempt.
    MaxForgets,  \* How often the target drops all it holds.
    MaxFails,    \* Commits that raise, having had their effect or not.
    Remembers,   \* Whether the target can tell what was never committed.
    Keeps,       \* Whether the WAL has the rows as well (keep_segments).
    BUG

Runs == 1 .. NRuns
Attempts == 1 .. NAttempts
Segs == 1 .. NSegs
Numbers == 1 .. (NRuns + 1)
None == <<"none">>
Staged(a, s) == <<"staged", a, s>>
Again(r, s, n) == <<"again", r, s, n>>
SegOf(t) == t[3]

VARIABLES
    begun,      \* Transactions with a record that they were begun, in the WAL.
    held,       \* The transactions that the target holds back.
    shown,      \* The transactions that it ever showed.
    taken,      \* Those of them that a reader removed since.
    handles,    \* By attempt and segment: the prepared transaction, None if that failed, or "?" before.
    manifests,  \* Attempts that are staged.
    completed,  \* Whether Spark completed the batch.
    released,   \* The attempt that counts; 0: none yet.
    prepared,   \* By segment and number: the record of what was prepared when it was delivered.
    progress,   \* Segments with a record that they are delivered.
    marked,
    term,       \* The highest claimed.
    forgets, fails,
    pc,         \* By run: what it does next.
    seg,        \* The segment it is at.
    has,        \* The transaction it is about to commit, and its number; 0 is the manifest's.
    maybe,      \* Whether a commit of that segment may have been tried before.
    todo        \* The transactions that it is about to abort.

vars == <<begun, held, shown, taken, handles, manifests, completed, released, prepared, progress, marked, term,
          forgets, fails, pc, seg, has, maybe, todo>>
target == <<held, shown, taken>>
spark == <<handles, manifests, completed>>
wal == <<begun, released, prepared, progress, marked, term>>
budgets == <<forgets, fails>>
local == <<pc, seg, has, maybe, todo>>

Init ==
    /\ begun = {} /\ held = {} /\ shown = {} /\ taken = {}
    /\ handles = [a \in Attempts |-> [s \in Segs |-> <<"?">>]]
    /\ manifests = {} /\ completed = FALSE /\ released = 0
    /\ prepared = [s \in Segs |-> [n \in Numbers |-> None]]
    /\ progress = {} /\ marked = FALSE /\ term = 0
    /\ forgets = 0 /\ fails = 0
    /\ pc = [r \in Runs |-> "off"] /\ seg = [r \in Runs |-> 1]
    /\ has = [r \in Runs |-> <<0, None>>] /\ maybe = [r \in Runs |-> FALSE] /\ todo = [r \in Runs |-> {}]

Go(r, where) == pc' = [pc EXCEPT ![r] = where]

(* Staging tasks. *)

Prepare(a, s) ==
    /\ handles[a][s] = <<"?">>
    /\ \E works \in BOOLEAN :
        /\ handles' = [handles EXCEPT ![a][s] = IF works THEN Staged(a, s) ELSE None]
        /\ (works \/ Keeps)
        /\ held' = held \cup {Staged(a, s)}   \* of one that failed, the abort may be left for later
        /\ begun' = begun \cup {Staged(a, s)}
    /\ shown' = IF BUG = "committed_when_prepared" THEN shown \cup {Staged(a, s)} ELSE shown
    /\ UNCHANGED <<taken, manifests, completed, released, prepared, progress, marked, term, budgets, local>>

StageManifest(a) ==
    /\ a \notin manifests
    /\ \A s \in Segs : handles[a][s] # <<"?">>
    /\ manifests' = manifests \cup {a}
    /\ UNCHANGED <<target, handles, completed, wal, budgets, local>>

SparkCommit ==
    /\ ~completed /\ manifests # {}
    /\ completed' = TRUE
    /\ UNCHANGED <<target, handles, manifests, wal, budgets, local>>

(* The target. *)

Forget ==
    /\ forgets < MaxForgets /\ held # {}
    /\ held' = {} /\ forgets' = forgets + 1
    /\ UNCHANGED <<shown, taken, spark, wal, fails, local>>

TakeAway ==
    /\ ~Remembers /\ shown \ taken # {}
    /\ taken' = shown
    /\ UNCHANGED <<held, shown, spark, wal, budgets, local>>

(* Aborting what nobody will commit. *)

Open(r) ==
    /\ pc[r] = "off" /\ term = r - 1
    /\ term' = r
    /\ Go(r, "tidy")
    /\ UNCHANGED <<target, spark, begun, released, prepared, progress, marked, budgets, seg, has, maybe, todo>>

Committed ==
    LET handed == IF released = 0 THEN {} ELSE {handles[released][s] : s \in Segs}
        again == {prepared[s][n] : s \in Segs, n \in Numbers}
    IN (handed \cup again) \ {None}

TidyLook(r) ==
    /\ pc[r] = "tidy"
    /\ todo' = [todo EXCEPT ![r] = IF marked \/ BUG = "aborted_before_the_marker" THEN begun \ Committed ELSE {}]
    /\ Go(r, "abort")
    /\ UNCHANGED <<target, spark, wal, budgets, seg, has, maybe>>

TidyAbort(r) ==
    /\ pc[r] = "abort"
    /\ IF todo[r] = {}
       THEN Go(r, "idle") /\ UNCHANGED <<held, begun, todo>>
       ELSE \E t \in todo[r] :
            /\ held' = held \ {t} /\ begun' = begun \ {t}
            /\ todo' = [todo EXCEPT ![r] = @ \ {t}]
            /\ UNCHANGED pc
    /\ UNCHANGED <<shown, taken, spark, released, prepared, progress, marked, term, budgets, seg, has, maybe>>

(* Committing. *)

Highest == CHOOSE a \in manifests : \A b \in manifests : b <= a

CheckOffice(r) ==
    /\ pc[r] = "idle" /\ completed /\ ~marked
    /\ Go(r, IF term > r THEN "fenced" ELSE "release")
    /\ UNCHANGED <<target, spark, wal, budgets, seg, has, maybe, todo>>

(* Of a batch that another run released, the marker is looked for once more. *)
Release(r) ==
    /\ pc[r] = "release"
    /\ released' = IF released = 0 \/ BUG = "release_not_pinned" THEN Highest ELSE released
    /\ maybe' = [maybe EXCEPT ![r] = released # 0]
    /\ seg' = [seg EXCEPT ![r] = 1]
    /\ Go(r, IF released # 0 /\ marked THEN "idle" ELSE "look")
    /\ UNCHANGED <<target, spark, begun, prepared, progress, marked, term, budgets, has, todo>>

Newest(s) == CHOOSE n \in Numbers : prepared[s][n] # None /\ \A m \in Numbers : m > n => prepared[s][m] = None

Look(r) ==
    LET s == seg[r]
        handle == handles[released][s]
        later == {n \in Numbers : prepared[s][n] # None}
        fresh == handle # None /\ ~maybe[r]
        wasChecked == fresh /\ NSegs = 1     \* SegmentTask.term_checked: before the release
    IN
    /\ pc[r] = "look"
    /\ IF s \in progress
       THEN has' = has /\ Go(r, "next")
       ELSE IF ~fresh /\ later # {}
       THEN has' = [has EXCEPT ![r] = <<Newest(s), prepared[s][Newest(s)]>>] /\ Go(r, "check")
       ELSE IF handle # None
       THEN has' = [has EXCEPT ![r] = <<0, handle>>] /\ Go(r, IF wasChecked THEN "commit" ELSE "check")
       ELSE has' = [has EXCEPT ![r] = <<0, None>>] /\ Go(r, "prepare")
    /\ UNCHANGED <<target, spark, wal, budgets, seg, maybe, todo>>

Check(r) ==
    /\ pc[r] = "check"
    /\ Go(r, IF term > r /\ BUG # "term_not_checked_before_commit" THEN "fenced" ELSE "commit")
    /\ UNCHANGED <<target, spark, wal, budgets, seg, has, maybe, todo>>

Commit(r) ==
    LET t == has[r][2]
        second == has[r][1] > (IF handles[released][seg[r]] = None THEN 1 ELSE 0) /\ ~maybe[r]  \* prepared again just now
        isHere == t \in held \/ (t \in shown /\ (Remembers \/ t \notin taken))
        isGone == ~isHere
        afterGone == IF BUG = "gone_taken_for_committed" THEN "record"
                     ELSE IF ~Keeps THEN "halted"
                     ELSE IF Remembers \/ BUG = "uncertain_prepared_again" THEN "prepare"
                     ELSE IF maybe[r] THEN "halted"
                     ELSE IF BUG = "gone_without_a_look_at_the_term" THEN "prepare" ELSE "sure"
    IN
    /\ pc[r] = "commit"
    /\ \/ /\ isHere
          /\ shown' = shown \cup {t} /\ held' = held \ {t}
          /\ Go(r, "record") /\ UNCHANGED <<maybe, fails>>
       \/ /\ isHere /\ fails < MaxFails     \* the answer is lost
          /\ shown' = shown \cup {t} /\ held' = held \ {t}
          /\ fails' = fails + 1 /\ maybe' = [maybe EXCEPT ![r] = TRUE] /\ Go(r, "look")
       \/ /\ fails < MaxFails               \* no effect
          /\ fails' = fails + 1 /\ maybe' = [maybe EXCEPT ![r] = TRUE] /\ Go(r, "look")
          /\ UNCHANGED <<shown, held>>
       \/ /\ isGone
          /\ IF second /\ afterGone \in {"prepare", "sure"}
             THEN maybe' = [maybe EXCEPT ![r] = TRUE] /\ Go(r, "look")
             ELSE Go(r, afterGone) /\ UNCHANGED maybe
          /\ UNCHANGED <<shown, held, fails>>
    /\ UNCHANGED <<taken, spark, wal, forgets, seg, has, todo>>

(* Nobody tried before, as far as this run knows: it is so if no newer process superseded it until now. *)
Sure(r) ==
    /\ pc[r] = "sure"
    /\ Go(r, IF term > r THEN "fenced" ELSE "prepare")
    /\ UNCHANGED <<target, spark, wal, budgets, seg, has, maybe, todo>>

PrepareAgain(r) ==
    LET n == has[r][1] + 1
        t == Again(r, seg[r], n)
    IN
    /\ pc[r] = "prepare" /\ n \in Numbers
    /\ begun' = begun \cup {t} /\ held' = held \cup {t}
    /\ has' = [has EXCEPT ![r] = <<n, t>>]
    /\ Go(r, "tell")
    /\ UNCHANGED <<shown, taken, spark, released, prepared, progress, marked, term, budgets, seg, maybe, todo>>

Tell(r) ==
    LET s == seg[r]
        n == has[r][1]
        mine == has[r][2]
    IN
    /\ pc[r] = "tell"
    /\ IF BUG = "preparation_not_recorded"
       THEN UNCHANGED <<prepared, has, held>>
       ELSE IF prepared[s][n] = None
       THEN prepared' = [prepared EXCEPT ![s][n] = mine] /\ UNCHANGED <<has, held>>
       ELSE /\ has' = [has EXCEPT ![r] = <<n, prepared[s][n]>>]
            /\ held' = held \ {mine}
            /\ UNCHANGED prepared
    /\ Go(r, "check")
    /\ UNCHANGED <<shown, taken, spark, begun, released, progress, marked, term, budgets, seg, maybe, todo>>

Record(r) ==
    /\ pc[r] = "record"
    /\ progress' = IF NSegs > 1 THEN progress \cup {seg[r]} ELSE progress
    /\ Go(r, "next")
    /\ UNCHANGED <<target, spark, begun, released, prepared, marked, term, budgets, seg, has, maybe, todo>>

NextSegment(r) ==
    /\ pc[r] = "next"
    /\ IF seg[r] < NSegs
       THEN seg' = [seg EXCEPT ![r] = @ + 1] /\ Go(r, "look")
       ELSE seg' = seg /\ Go(r, "mark")
    /\ UNCHANGED <<target, spark, wal, budgets, has, maybe, todo>>

CreateMarker(r) ==
    /\ pc[r] = "mark"
    /\ marked' = TRUE
    /\ Go(r, "tidy")
    /\ UNCHANGED <<target, spark, begun, released, prepared, progress, term, budgets, seg, has, maybe, todo>>

Next ==
    \/ \E a \in Attempts : StageManifest(a) \/ \E s \in Segs : Prepare(a, s)
    \/ SparkCommit \/ Forget \/ TakeAway
    \/ \E r \in Runs :
        \/ Open(r) \/ TidyLook(r) \/ TidyAbort(r) \/ CheckOffice(r) \/ Release(r) \/ Look(r) \/ Check(r) \/ Commit(r)
        \/ Sure(r) \/ PrepareAgain(r) \/ Tell(r) \/ Record(r) \/ NextSegment(r) \/ CreateMarker(r)

Spec == Init /\ [][Next]_vars

(* Laws *)

NothingShowsEarly == shown # {} => completed
NothingTwice == \A s \in Segs : Cardinality({t \in shown : SegOf(t) = s}) <= 1
NothingMissing == marked => \A s \in Segs : \E t \in shown : SegOf(t) = s
OnlyTheReleased == \A t \in shown : t[1] = "staged" => t[2] = released
StopsOnlyForALoss == \A r \in Runs : pc[r] = "halted" => (forgets > 0 \/ taken # {})
====
