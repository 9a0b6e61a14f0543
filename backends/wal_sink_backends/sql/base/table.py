"""The target table of a `SqlSink`: it is made, or described and checked, and each transaction checks it again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wal_sink.errors import PermanentError
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import Finding, fine
from wal_sink_backends.sql.base.dialect import ColumnsMissing, TableAltered, TableMissing
from wal_sink_backends.sql.base.values import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wal_sink_backends.common.columns import ArrowType
    from wal_sink_backends.sql.base.dialect import Connection, Dialect, Look

_logger = logger_of(__name__)
_QUOTES = frozenset({'""', "``", "''", "[]"})


@dataclass(frozen=True, slots=True)
class Known:
    """A table that was checked against the columns of a chunk."""

    schema: Any
    look: Look
    """The table and the ledger when they were checked. If a later look differs, they are checked again."""
    replaces_nulls: frozenset[str]
    """Folded names of columns in which the database would replace a NULL."""
    collations: Mapping[str, str]
    """Collations by folded name, if the order of rows depends on them."""
    declared: Mapping[str, str]
    """The types of the table's columns by folded name."""


class TargetTable:
    """One table, and the facts that are known about it on the present connection."""

    def __init__(
        self,
        dialect: Dialect,
        name: str,
        key: Sequence[str],
        *,
        create: bool,
        adds: bool = False,
        never_adds: Sequence[str] = (),
    ) -> None:
        self._dialect = dialect
        self._name = name
        self._key = key
        self.creates = create
        self._adds, self._never_added = adds, {*key, *never_adds}
        self._known: Known | None = None
        self.oid: int | None = None
        """The number of the table in this run; None before it is known."""

    def forget(self) -> None:
        """Forget the table: a new connection may lead to another server."""
        self._known = None

    def remember(self, known: Known) -> None:
        """Remember the table, after the transaction of `fit` was committed."""
        self._known, self.oid = known, self.oid or known.look.oid

    def fit(self, connection: Connection, schema: Any, what: str, refuse_lost: Callable[[], None]) -> Known:
        """Make or check the table, within the transaction that writes to it.

        `refuse_lost` is called before a missing table is made. It raises if the table existed before.
        A known table is checked again: it may have been altered, or another one may have its name now. Raises
        `PermanentError` if table and columns do not fit, `TableMissing` if the table has to be made outside the
        transaction, `ColumnsMissing` if columns have to be added there, and `TableAltered` if the table is altered at
        this moment.
        """
        known, columns = self._known, list(_types(schema))
        if known is not None and schema.equals(known.schema) and self._is_still(connection, known.look, columns):
            return known
        look = self._described(connection, schema, what, refuse_lost)
        if not self._is_still(connection, look, columns):
            raise TableAltered(f"{what}: the table was altered while its description was read. wal-sink tries again")
        replaces_nulls = self._dialect.replaces_nulls(connection, self._name)
        collations = self._dialect.collations(connection, self._name) if self._key else {}
        declared = self._dialect.columns(connection, self._name)
        return Known(schema, look, replaces_nulls, collations, declared)

    def examine(self, connection: Connection, schema: Any, what: str) -> Finding:
        """Compare the table with the columns of some rows, and make nothing. `schema` is None if none are known.

        Raises `PermanentError` as `fit` does.
        """
        check = "target.table"
        look = self._dialect.look(connection, self._name)
        self.oid = look.oid  # copies of the sink, on executors too, know it for this run
        if look.problem:
            raise PermanentError(f"{what}: {look.problem}")
        if not (found := self._dialect.columns(connection, self._name)):
            self._refuse_missing(what)
            return fine(check, f"{what}: the first delivery makes this table")
        if schema is None:
            return fine(check, f"{what}: the table exists, with the columns {', '.join(found)}")
        wanted = _types(schema)
        lacking = self._check_columns(wanted, found, what)
        if problem := self._dialect.check_table(connection, self._name, list(wanted), self._key):
            raise PermanentError(f"{what}: {problem}")
        adds = f". The next delivery adds columns: {self._adding(lacking)}" if lacking else ""
        return fine(check, f"{what}: the table takes the columns {', '.join(wanted)}{adds}")

    def _is_still(self, connection: Connection, look: Look, columns: Sequence[str]) -> bool:
        held = self._dialect.hold(connection, self._name, columns)
        return held and self._dialect.look(connection, self._name) == look

    def confirm(self, connection: Connection, known: Known, what: str) -> None:
        """Check the table again after the rows, if `hold` does not prevent an ALTER TABLE."""
        if not self._dialect.holds and self._dialect.look(connection, self._name) != known.look:
            raise TableAltered(
                f"{what}: the table was altered while rows were written to it. Nothing was written. wal-sink tries "
                "again"
            )

    def make(self, connection: Connection, schema: Any) -> None:
        """Create the table, unless another process created it first."""
        statement = self._dialect.create(self._name, _types(schema), self._key)
        self._dialect.create_table(connection, self._name, statement)

    def add(self, connection: Connection, columns: Mapping[str, ArrowType], what: str) -> None:
        """Add columns, unless another process added them first. Called outside of a transaction.

        Raises `PermanentError` with the statement for a person, and the driver's error if another attempt may succeed.
        """
        _logger.info("%s: adding columns: %s", what, self._adding(columns))
        try:
            self._dialect.add_columns(connection, self._name, columns)
        except self._dialect.driver_error() as error:
            if self._dialect.passes(error):
                _logger.warning("%s: the columns %s are not added yet: %s", what, [*columns], self._dialect.told(error))
                raise
            raise PermanentError(
                f"{what}: the columns {[*columns]} cannot be added: {self._dialect.told(error)}. Run as another user: "
                f"{self._adding(columns)}"
            ) from error

    def _adding(self, columns: Mapping[str, ArrowType]) -> str:
        return "; ".join(self._dialect.adding(self._name, columns))

    def _described(self, connection: Connection, schema: Any, what: str, refuse_lost: Callable[[], None]) -> Look:
        look = self._dialect.look(connection, self._name)
        if look.problem:
            raise PermanentError(f"{what}: {look.problem}")
        if self.oid and look.oid and look.oid != self.oid:
            raise PermanentError(
                f"{what}: another table has this name now (oid {look.oid}, expected {self.oid}). If the table was "
                "replaced on purpose, start again: a start goes on if schema, name and ledger fit"
            )
        wanted = _types(schema)
        if not (found := self._dialect.columns(connection, self._name)):
            self._make_missing(connection, schema, what, refuse_lost)
            return self._dialect.look(connection, self._name)
        lacking = self._check_columns(wanted, found, what)
        if problem := self._dialect.check_table(connection, self._name, list(wanted), self._key):
            raise PermanentError(f"{what}: {problem}")
        if lacking:
            raise ColumnsMissing(lacking, what)
        return look

    def _make_missing(self, connection: Connection, schema: Any, what: str, refuse_lost: Callable[[], None]) -> None:
        if self._known is not None:
            raise PermanentError(
                f"{what}: the table no longer exists, and the rows that this process wrote to it are lost. The ledger "
                "still records these rows as delivered. Restore the table and the ledger together"
            )
        self._refuse_missing(what)
        refuse_lost()
        if not self._dialect.creates_in_transaction:
            raise TableMissing(partial(self.make, connection, schema))
        self.make(connection, schema)

    def _refuse_missing(self, what: str) -> None:
        """Refuse a missing table that is not to be made."""
        if advice := misread_name(self._name, self._dialect.schema_is):
            raise PermanentError(f"{what}: no table has exactly the name {self._name!r}, and {advice}")
        if not self.creates:
            raise PermanentError(f"{what}: this table does not exist. Create it, or pass create_table=True")

    def _check_columns(self, wanted: Mapping[str, ArrowType], found: dict[str, str], what: str) -> dict[str, ArrowType]:
        """The columns that the table lacks and may get. Raises `PermanentError` for any other difference."""
        lacking: dict[str, ArrowType] = {}
        for name, kind in wanted.items():
            declared = found.get(self._dialect.fold(name))
            if declared is None:
                self._refuse_to_add(name, kind, [*found, *lacking], what)
                lacking[name] = kind
            elif not self._dialect.fits(kind, declared):
                statement = self._dialect.retyping(self._name, name, kind, self._key)
                raise PermanentError(
                    f"{what}: column {name!r} is declared {declared!r}. This type would alter {kind_of(kind)} values "
                    f"({kind}); expected {self._dialect.type_name(kind)!r}. Change the table"
                    f"{statement and f' ({statement})'}, or cast the column in the query"
                )
        return lacking

    def _refuse_to_add(self, name: str, kind: ArrowType, found: Sequence[str], what: str) -> None:
        """Refuse a missing column, unless it may be added. Key, age and flag would be NULL in old rows."""
        twin = next((other for other in found if other.casefold() == name.casefold()), None)
        may_be_added = twin is None and kind_of(kind) != "void" and name not in self._never_added
        if self._adds and may_be_added:
            return
        only = sorted(found) if twin is None else f"{twin!r}, in another case"
        hint = ", or pass evolve='add'" if may_be_added else ""
        raise PermanentError(
            f"{what}: the table has no column {name!r}, only {only}. Add the column to the table "
            f"({self._adding({name: kind})}){hint}, or drop or rename it in the query"
        )


def misread_name(table: str, schema_is: str | None) -> str | None:
    """Advice for a name that reads like a schema and a table, or like a quoted name; None for any other name."""
    exactly = f"create the table {table!r} first if you mean exactly this name"
    if table[:1] + table[-1:] in _QUOTES and len(table) > 1:
        return f"the quotes count as part of the name. Write the name without the quotes, or {exactly}"
    schema, dot, last = table.rpartition(".")
    if not dot:
        return None
    if schema_is is None:
        return f"the dot counts as part of the name. Write table={last!r}, or {exactly}"
    return f"{schema_is} is not part of the name. Write schema={schema!r} and table={last!r}, or {exactly}"


def _types(schema: Any) -> dict[str, ArrowType]:
    return {field.name: field.type for field in schema}
