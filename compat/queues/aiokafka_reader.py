"""A consumer by aiokafka: aiokafka_reader.py BOOTSTRAP TOPIC GROUP. See ../readers.py."""

import asyncio
import signal
import sys

from aiokafka import AIOKafkaConsumer

bootstrap, topic, group = sys.argv[1:]


async def main():
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    # A reader of committed records looks into control batches for the ends of transactions.
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    while not leaving.is_set():
        found = await consumer.getmany(timeout_ms=200)
        for records in found.values():
            for record in records:
                print(record.partition, record.offset, record.value.decode(), flush=True)
        # How far it has come, also where nothing is left behind the last record.
        if consumer.assignment():
            await consumer.commit()
    await consumer.stop()


asyncio.run(main())
