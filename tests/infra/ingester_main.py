"""An ingester in a process of its own, to be killed: settings and failpoints come from the environment."""

import asyncio
import uuid

from outlive.infra.bus import Bus
from outlive.infra.ingester import Ingester
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects


async def main() -> None:
    settings = Settings.load(lease=0.3, heartbeat=0.05)
    assert settings.nats_url and settings.postgres_dsn
    async with Bus(settings.nats_url) as bus:
        subjects = Subjects(settings.prefix)
        await Ingester(settings.postgres_dsn, bus, subjects, uuid.uuid4(), settings, lambda _: None).run()


asyncio.run(main())
