"""A process of its own that runs the servers of a state folder until it is told to end or is killed."""

import asyncio
import sys
from pathlib import Path

from outlive.infra import embedded, migrate


async def main(state_dir: Path) -> None:
    async with embedded.Pair(state_dir) as pair:
        await migrate.migrate(pair.postgres_dsn)
        print(pair.postgres.pid, pair.nats.pid, flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
