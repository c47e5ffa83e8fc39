"""asyncio beside threads: what comes from outside of a loop orders its tasks by time, and says what it has waited for."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_host_timing import Gpu, line_of, started


@pytest.fixture
def gpu():
    found = Gpu()
    yield found
    found.certificate()
    found.driver.close()


# -- what depends on timing ------------------------------------------------------------------------------------------


def tasks_that_wait_for_threads(gpu):
    async def job(i):
        await asyncio.to_thread(int)  # asked
        gpu.use(0)

    async def main():
        await asyncio.gather(job(1), job(2))

    asyncio.run(main())


def tasks_that_sleep(gpu):
    async def job(i):
        await asyncio.sleep(0.001 * i)  # asked
        gpu.use(0)

    async def main():
        await asyncio.gather(job(1), job(2))

    asyncio.run(main())


def a_task_beside_the_one_that_waits(gpu):
    async def job():
        await asyncio.to_thread(int)  # asked
        gpu.use(0)

    async def main():
        task = asyncio.create_task(job())
        for _ in range(3):
            await asyncio.sleep(0)
            gpu.use(0)
        await task

    asyncio.run(main())


def a_question(gpu):
    async def main():
        future = asyncio.get_running_loop().run_in_executor(None, int)
        while not future.done():  # asked
            await asyncio.sleep(0)
            gpu.use(0)

    asyncio.run(main())


def the_first_of_two(gpu):
    async def main():
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(None, int) for _ in range(2)]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)  # asked
        await asyncio.wait(futures)

    asyncio.run(main())


def the_first_of_two_that_come_together(gpu):
    async def main():
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(2)
        futures = [loop.run_in_executor(pool, int) for _ in range(2)]
        loop.call_soon(pool.shutdown)  # both are done when the loop looks again
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)  # asked

    asyncio.run(main())


def the_first_of_two_tasks_of_threads(gpu):
    async def main():
        tasks = [asyncio.create_task(asyncio.to_thread(int)) for _ in range(2)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # asked
        await asyncio.wait(tasks)

    asyncio.run(main())


def one_after_the_other_as_they_come(gpu):
    async def main():
        for each in asyncio.as_completed([asyncio.to_thread(int) for _ in range(2)]):  # asked
            await each
            gpu.use(0)

    asyncio.run(main())


def a_limit_of_time(gpu):
    async def main():
        await asyncio.wait_for(asyncio.to_thread(int), 5)  # asked

    asyncio.run(main())


def a_call_at_some_time(gpu):
    async def main():
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.001, lambda: (gpu.use(0), done.set_result(None)))  # asked
        await done

    asyncio.run(main())


def input_for_one_of_two_tasks(gpu):
    async def main():
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            reads = asyncio.create_task(asyncio.get_running_loop().sock_recv(here, 1))

            async def job():
                await reads
                gpu.use(0)

            task = asyncio.create_task(job())
            await asyncio.sleep(0)
            there.send(b"1")
            await asyncio.sleep(0)
            gpu.use(0)
            await task

    asyncio.run(main())  # asked


def work_from_another_thread(gpu):
    loop = asyncio.new_event_loop()
    (thread,) = started(loop.run_forever)

    async def job(stream):
        gpu.use(0, stream)
        await asyncio.sleep(0)
        gpu.use(0, stream)

    futures = [asyncio.run_coroutine_threadsafe(job(i), loop) for i in (1, 2)]  # asked
    for future in futures:
        future.result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


ASKED = [
    tasks_that_wait_for_threads, tasks_that_sleep, a_task_beside_the_one_that_waits, a_question, the_first_of_two,
    the_first_of_two_that_come_together, the_first_of_two_tasks_of_threads, one_after_the_other_as_they_come,
    a_limit_of_time, a_call_at_some_time, input_for_one_of_two_tasks, work_from_another_thread,
]  # fmt: skip


@pytest.mark.parametrize("program", ASKED, ids=lambda program: program.__name__)
def test_what_depends_on_timing_is_named(gpu, program):
    program(gpu)
    gpu.use()
    certificate = gpu.certificate()
    assert not certificate.race_free
    assert line_of(program, "# asked") in str(certificate.violated), str(certificate)


# -- what does not ---------------------------------------------------------------------------------------------------


def tasks_of_one_thread(gpu):
    async def job(i, work):
        for _ in range(3):
            gpu.use(0)
            await asyncio.sleep(0)
            await work.put(i)

    async def main():
        work = asyncio.Queue()
        tasks = [asyncio.create_task(job(i, work)) for i in range(3)]
        for _ in range(9):
            await work.get()
            gpu.use(0)
        await asyncio.gather(*tasks)
        more = [asyncio.create_task(job(i, work)) for i in range(2)]
        await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(more)

    asyncio.run(main())


def a_single_task(gpu):
    async def main():
        for _ in range(2):
            await asyncio.to_thread(gpu.use, 1, 1)
            gpu.use(1)
            await asyncio.sleep(0.001)
            gpu.use(1)

    asyncio.run(main())


def a_task_in_the_background(gpu):
    async def main():
        loaded = asyncio.get_running_loop().run_in_executor(None, gpu.use, 1, 1)
        gpu.use(0)
        await asyncio.sleep(0)
        gpu.use(0)
        await loaded
        gpu.use(1)

    asyncio.run(main())


def threads_gathered(gpu):
    async def main():
        await asyncio.gather(*[asyncio.to_thread(gpu.use, i, i) for i in (1, 2)])
        gpu.use(1), gpu.use(2)
        await asyncio.wait([asyncio.create_task(asyncio.to_thread(gpu.use, i, i)) for i in (1, 2)])
        gpu.use(1), gpu.use(2)

    asyncio.run(main())


def a_task_that_is_awaited(gpu):
    async def job():
        await asyncio.to_thread(gpu.use, 1, 1)
        gpu.use(1)

    async def main():
        for _ in range(2):
            await asyncio.create_task(job())
            gpu.use(1)

    asyncio.run(main())


def a_loop_in_a_thread(gpu):
    loop = asyncio.new_event_loop()
    (thread,) = started(loop.run_forever)

    async def job():
        gpu.use(0, 1)
        await asyncio.sleep(0)
        gpu.use(0, 1)

    for _ in range(3):
        asyncio.run_coroutine_threadsafe(job(), loop).result()
        gpu.use(0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


CERTAIN = [
    tasks_of_one_thread, a_single_task, a_task_in_the_background, threads_gathered, a_task_that_is_awaited,
    a_loop_in_a_thread,
]  # fmt: skip


@pytest.mark.parametrize("program", CERTAIN, ids=lambda program: program.__name__)
def test_what_is_the_same_in_every_run_is_certified(gpu, program):
    gpu.use()
    program(gpu)
    certificate = gpu.certificate()
    assert certificate.race_free, str(certificate)


# -- orders that are not there ---------------------------------------------------------------------------------------


def a_result_that_came_but_was_not_waited_for(gpu):
    """It came during the sleep here; in another run the task goes on before."""
    done = threading.Event()

    async def main():
        loaded = asyncio.get_running_loop().run_in_executor(None, lambda: (gpu.use(1, 1), done.set()))
        for _ in range(10):
            await asyncio.sleep(0.001)
        gpu.use(1)
        await loaded

    asyncio.run(main())


def a_task_of_a_thread_that_was_not_waited_for(gpu):
    async def main():
        loaded = asyncio.create_task(asyncio.to_thread(gpu.use, 1, 1))
        for _ in range(10):
            await asyncio.sleep(0.001)
        gpu.use(1)
        await loaded

    asyncio.run(main())


UNORDERED = [a_result_that_came_but_was_not_waited_for, a_task_of_a_thread_that_was_not_waited_for]


@pytest.mark.parametrize("program", UNORDERED, ids=lambda program: program.__name__)
def test_what_may_come_in_another_order_is_not_certified(gpu, program):
    gpu.use()
    program(gpu)
    assert not gpu.certificate().race_free
