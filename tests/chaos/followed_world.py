"""The small world of the simulation with its WAL on a server. The judge sees what the server has, not what it answers.

`wal` of such a world is a copy of the server's objects, kept up to date. So an effect whose answer was lost shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.world import World


class FollowedWorld(World):
    """A world whose `wal` is a copy of the objects on a server."""

    def follow(self, there: Mapping[str, bytes], after: str) -> None:
        """Make the copy equal to the server's objects. The judge looks at each difference, as it does at each step.

        `after` names the request or the call, for a complaint.
        """
        known = self.wal.objects
        for path in sorted(known.keys() - there.keys()):
            self.judge.deleting(path)
            self.wal.delete([path])
        for path, data in there.items():
            if path not in known:
                self.wal.create(path, data)
                self.judge.created(self.lives, path, data)
            elif known[path] != data:
                self.judge.blame(f"{after}: {path} was overwritten with other bytes")


def rows_lost_and_repeated(world: World) -> tuple[int, int]:
    """Count in the target: the evaluated rows that never arrived, and the rows that arrived more than once."""
    wanted = {(batch_id, row) for batch_id, parts in enumerate(world.plan.batches) for row in range(sum(parts))}
    came = [(batch_id, row) for _, batch_id, row in world.rows]
    return len(wanted.difference(came)), len(came) - len(set(came))
