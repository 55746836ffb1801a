"""The thread of a disk tier that alone changes its files: takes over, writes, evicts, removes, and tells of it."""

import errno
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cache.block_hasher import BlockKey
from cache.tiers.disk_folder import OUR_OWN_LACK, OWN_BYTES, DiskFolder, FoundFile
from cache.tiers.disk_format import PageFault
from cache.tiers.disk_index import PageKeys
from cache.tiers.disk_state import DiskState, RefusalCause

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # after the disk failed
FULL_SECONDS = 60.0  # a full disk is taken as it is for so long
PAGES_AT_ONCE = 256  # that a start takes over before it says so
DAY_NS = 24 * 3600 * 10**9  # a file of a time further ahead does not set the time of those to come
_FULL = {errno.ENOSPC, errno.EDQUOT}

OnChange = Callable[[Sequence[BlockKey], Sequence[BlockKey]], None]


class DiskWriter:
    def __init__(self, root: Path, state: DiskState, on_change: OnChange):
        self._root, self._state, self._on_change = root, state, on_change
        self._was_warned = self._is_suspect = False

    def run(self) -> None:
        """Until the tier is closed and nothing waits any more."""
        state = self._state
        while True:
            delay = self.work()
            with state.stirred:
                if state.closing and not state.queue:
                    return
                if not state.has_work:
                    state.stirred.wait(delay)
                state.has_work = False

    def work(self) -> float | None:
        """Everything that can be done now. Returns seconds until there is more to do; None: when something comes."""
        try:
            return self._work()
        except Exception as error:  # whatever it is, this thread lives on
            self.failed(error)
            return RETRY_SECONDS
        finally:
            self._tell()

    def open(self) -> None:
        """Raises OSError."""
        state = self._state
        folder = DiskFolder(self._root, state.format)
        with state.lock:
            state.folder = folder
            state.has_files = state.must_remove_set_aside = True  # of a process that died before it had
            state.is_loaded = False

    def set_aside(self, folder: DiskFolder) -> None:
        """Raises OSError; called with `placing` held."""
        folder.set_aside()
        self._state.must_set_aside = self._state.has_files = False

    def failed(self, error: Exception) -> None:
        """Nothing is written for a while."""
        state = self._state
        with state.lock:
            state.counts.failures["io"] += 1
            state.retry_at = state.clock() + RETRY_SECONDS
        self._is_suspect = True
        self._warn("%s: the disk tier writes nothing for now, tried again every %.0f s", error, RETRY_SECONDS)

    def _warn(self, message: str, error: Exception, seconds: float) -> None:
        if not self._was_warned:  # once, until a page could be written again
            logger.warning(message, error, seconds)
            self._was_warned = True

    def _work(self) -> float | None:
        state = self._state
        if state.closing and not state.queue:
            if state.folder is not None:
                self._remove_doomed(state.folder)
            return None
        if (pause := state.retry_at - state.clock()) > 0:
            return pause
        self._reopen_where_lost()
        while not state.closing or state.queue:
            folder = self._tidy()
            if not state.is_loaded:
                self._take_over(folder)
                continue
            with state.lock:
                if state.must_remove_set_aside:
                    continue
                if not state.queue:
                    return None
                if (delay := state.pace.delay()) > 0:
                    return delay
                page, buffer = state.queue.pop()
                state.writing, generation = page[-1], state.generation
            try:
                self._write(folder, page, memoryview(buffer), generation)
            finally:
                with state.lock:
                    state.queue.give_back(buffer)
                    state.writing = None
            self._tell()
        return None

    def _reopen_where_lost(self) -> None:
        state = self._state
        if state.folder is not None and self._is_suspect and not state.folder.is_ours():
            with state.lock:
                lost, state.folder = state.folder, None
                state.forget_all()
            lost.release()
        if state.folder is None:
            self.open()
        self._is_suspect = False

    def _tidy(self) -> DiskFolder:
        """Does what is left of a clear, and removes what readers found to be no page."""
        state = self._state
        folder = state.folder
        assert folder is not None
        with state.placing:
            if state.must_set_aside:
                self.set_aside(folder)
        while state.must_remove_set_aside:
            state.must_remove_set_aside = False
            try:
                folder.remove_set_aside()
            except OSError:
                state.must_remove_set_aside = True
                raise
            with state.placing:
                state.used_bytes = OWN_BYTES + sum(file.num_bytes for file in folder.found())
        self._remove_doomed(folder)
        return folder

    def _remove_doomed(self, folder: DiskFolder) -> None:
        state = self._state
        while True:
            with state.lock:
                if not state.doomed:
                    return
                key, generation = state.doomed.pop(), state.generation
            self._try_to_remove(folder, key, state.page_on_disk, generation)

    def _take_over(self, folder: DiskFolder) -> None:
        """Makes findable what lies in the folder, by reading headers alone; first the pages that were used last."""
        state = self._state
        folder.drop_temporary()
        with state.lock:
            generation = state.generation
        with state.placing:
            files = folder.found()
        with state.lock:
            state.stamp(at_least=min(files[0].stamp, time.time_ns() + DAY_NS) if files else 0)
        state.used_bytes = OWN_BYTES + sum(file.num_bytes for file in files)
        for file in files:
            if file.num_bytes != state.page_on_disk:  # no page of ours; first, or good ones would make room for it
                self._taken(folder, file, generation)
        files = [file for file in files if file.num_bytes == state.page_on_disk]
        while files and state.used_bytes > state.max_bytes:
            with state.lock:
                state.count_removed(1)
            self._try_to_remove(folder, files[-1].key, files.pop().num_bytes, generation)
        for start in range(0, len(files), PAGES_AT_ONCE):
            pages = [self._taken(folder, file, generation) for file in files[start : start + PAGES_AT_ONCE]]
            with state.lock:
                if generation != state.generation or state.closing:
                    break
                stored: list[BlockKey] = []
                for page in pages:
                    if page is not None:
                        stored += state.index.add(page, coldest=True)
                state.changes.append((stored, ()))
            self._tell()
        with state.lock:
            state.is_loaded = True

    def _taken(self, folder: DiskFolder, file: FoundFile, generation: int) -> PageKeys | None:
        try:
            return folder.read_header(file.key)
        except (OSError, PageFault) as error:
            state = self._state
            if generation == state.generation:  # else all files are being removed
                with state.lock:
                    state.counts.failures[error.cause if isinstance(error, PageFault) else "io"] += 1
                if isinstance(error, PageFault) or error.errno not in OUR_OWN_LACK:
                    with state.lock:
                        state.count_removed(1)
                    self._try_to_remove(folder, file.key, file.num_bytes, generation)
            return None

    def _write(self, folder: DiskFolder, page: PageKeys, blob: memoryview, generation: int) -> None:
        state = self._state
        key = page[-1]
        try:
            # One that is here was offered before the start had come to it.
            refusal: RefusalCause | None = "present" if key in state.index else None
            if refusal is None and not self._make_room(folder):
                refusal = "full"
            if refusal is not None:
                with state.lock:
                    state.counts.refused[refusal] += 1
                return
            with state.lock:
                state.pace.began(state.format.file_bytes)
                stamp = state.stamp()
            folder.write(state.format.header(page, blob), blob, stamp)
            with state.placing:
                if generation != state.generation:  # cleared meanwhile
                    folder.drop_temporary()
                    return
                folder.place(key)
                state.has_files = True
                state.used_bytes += state.page_on_disk
                with state.lock:
                    state.changes.append((state.index.add(page), ()))
                    state.counts.written_pages += 1
                    state.counts.written_bytes += state.format.page_bytes
        except OSError as error:
            folder.drop_temporary()
            if error.errno not in _FULL:
                raise
            self._is_full(error)
        else:
            if state.clock() >= state.full_until:
                self._was_warned = False

    def _is_full(self, error: OSError) -> None:
        """What is used now is all there is for a while: the next page takes the place of another one."""
        state = self._state
        with state.lock:
            state.counts.failures["full"] += 1
            state.room, state.full_until = state.used_bytes, state.clock() + FULL_SECONDS
        self._warn("%s: the disk tier stays smaller, tried again every %.0f s", error, FULL_SECONDS)

    def _make_room(self, folder: DiskFolder) -> bool:
        """Evicts for one page more; False where there is nothing left to evict."""
        state = self._state
        while state.used_bytes + state.page_on_disk > state.limit_bytes():
            with state.lock:
                if not len(state.index):
                    return False
                key, gone = state.index.drop_coldest()
                state.changes.append(((), gone))
                state.count_removed(1)
                generation = state.generation
            self._remove(folder, key, state.page_on_disk, generation)
        return True

    def _remove(self, folder: DiskFolder, key: BlockKey, num_bytes: int, generation: int) -> None:
        """Raises OSError; a file that cannot be removed goes on being counted in the bound."""
        # One that a clear has set aside meanwhile is counted until it is removed there.
        if folder.remove(key) or generation == self._state.generation:
            self._state.used_bytes -= num_bytes

    def _try_to_remove(self, folder: DiskFolder, key: BlockKey, num_bytes: int, generation: int) -> None:
        try:
            self._remove(folder, key, num_bytes, generation)
        except OSError as error:
            self.failed(error)

    def _tell(self) -> None:
        state = self._state
        with state.lock:
            changes, state.changes = state.changes, []
        for stored, removed in changes:
            if stored or removed:
                try:
                    self._on_change(stored, removed)
                except Exception:
                    logger.exception("what a disk tier holds could not be told")
