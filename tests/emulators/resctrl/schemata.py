"""Control values of every class: the grammar of schemata, overlap rules, start values, sizes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.parsing import SPACE, kernel_number
from tests.emulators.resctrl.profiles import Bandwidth, Cache, Profile
from tests.emulators.resctrl.state import EXCLUSIVE, LOCKED, LOCKSETUP, SHAREABLE, Group, LastCommand

UNLIMITED_MBPS = 0xFFFFFFFF
_ULONG = (1 << 64) - 1
_UINT = (1 << 32) - 1


@dataclass(frozen=True)
class Schema:
    """One line of schemata."""

    name: str
    resource: Cache | Bandwidth
    part: str
    """CODE, DATA, or empty without CDP."""
    num_closids: int
    mbps: bool = False


def schemas_of(profile: Profile, options: frozenset[str]) -> list[Schema]:
    """Lines in the order of a modern kernel: what is added last is printed first."""
    found: list[Schema] = []
    for cache in sorted(profile.caches, key=lambda cache: cache.name, reverse=True):
        split = ("cdp" if cache.name == "L3" else "cdpl2") in options
        for part in ("CODE", "DATA") if split else ("",):
            closids = cache.num_closids // 2 if split else cache.num_closids
            found.insert(0, Schema(cache.name + part, cache, part, closids))
    for bandwidth in profile.bandwidths:
        mbps = bandwidth.name == "MB" and "mba_MBps" in options
        found.insert(0, Schema(bandwidth.name, bandwidth, "", bandwidth.num_closids, mbps))
    return found


class Controls:
    """What each class may use, and who may change it to what."""

    def __init__(self, profile: Profile, options: frozenset[str], status: LastCommand) -> None:
        self._profile = profile
        self._status = status
        self.schemas = schemas_of(profile, options)
        self.closids = min((schema.num_closids for schema in self.schemas), default=1)
        self._values: dict[tuple[str, int, int], int] = {}
        self.groups: Callable[[], list[Group]] = list
        """All CTRL groups; set by the model."""
        self.hardware_class: int | None = None
        """Class that io_alloc holds."""
        self.offline: set[int] = set()
        """Domains whose CPUs are all gone."""

    def domains(self, schema: Schema) -> list[int]:
        """Domain ids in order."""
        return [domain for domain in schema.resource.domains if domain not in self.offline]

    def schema(self, name: str) -> Schema | None:
        """The line called `name`."""
        return next((schema for schema in self.schemas if schema.name == name), None)

    def value(self, schema: Schema, domain: int, closid: int) -> int:
        """What class `closid` has in `domain`; hardware starts wide open."""
        return self._values.get((schema.name, domain, closid), self.widest(schema))

    def put(self, schema: Schema, domain: int, closid: int, value: int) -> None:
        """Program the hardware."""
        self._values[schema.name, domain, closid] = value

    @staticmethod
    def widest(schema: Schema) -> int:
        """Value without any limit."""
        if schema.mbps:
            return UNLIMITED_MBPS
        return schema.resource.full if isinstance(schema.resource, Cache) else schema.resource.maximum

    def peers(self, schema: Schema) -> list[Schema]:
        """The lines that share the same cache: itself, and with CDP the other half."""
        return [other for other in self.schemas if other.resource is schema.resource]

    def locked_bits(self, schema: Schema, domain: int) -> int:
        """Bits of `domain` that are pseudo-locked."""
        return sum(
            group.locked[2]
            for group in self.groups()
            if group.locked and group.locked[0] == schema.name and group.locked[1] == domain and group.mode == LOCKED
        )

    def locked(self, group: Group) -> tuple[str, int, int]:
        """The region of a pseudo-locked group. Raises ResctrlError ENODEV where its domain went away."""
        assert group.locked is not None
        if group.locked[1] in self.offline:
            self._status.clear()
            raise self._status.fail(errno.ENODEV, "Cache domain offline")
        return group.locked

    def overlaps(self, schema: Schema, domain: int, mask: int, closid: int, exclusive: bool) -> bool:
        """Whether `mask` hits another class, exclusive ones only or any one and what the hardware shares."""
        assert isinstance(schema.resource, Cache)
        if not exclusive and mask & schema.resource.shareable_bits:
            return True
        for group in self.groups():
            if group.closid == closid or group.mode in {LOCKSETUP, LOCKED}:
                continue
            if exclusive and group.mode != EXCLUSIVE:
                continue
            if any(mask & self.value(peer, domain, group.closid) for peer in self.peers(schema)):
                return True
        return False

    def write(self, group: Group, text: str) -> None:
        """Take a block of lines without its last newline: all are judged before any is applied.

        MBps values are the exception: they are stored as they are read. Raises ResctrlError EINVAL.
        """
        if group.mode == LOCKED:
            raise self._status.fail(errno.EINVAL, "Resource group is pseudo-locked")
        staged: dict[tuple[str, int], int] = {}
        for line in text.split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip(SPACE)
            if not colon:
                raise self._status.fail(errno.EINVAL, "Missing ':'")
            if not rest:
                raise self._status.fail(errno.EINVAL, f"Missing '{name}' value")
            schema = self.schema(name)
            if schema is None or group.closid >= schema.num_closids:
                raise self._status.fail(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            self.line(group, schema, rest, staged)
        for (name, domain), value in staged.items():
            target = self.schema(name)
            assert target is not None
            self.put(target, domain, group.closid, value)

    def line(self, group: Group, schema: Schema, text: str, staged: dict[tuple[str, int], int]) -> None:
        """Judge what follows the name of `schema` for the class of `group`. Raises ResctrlError EINVAL."""
        if group.mode == LOCKSETUP and isinstance(schema.resource, Bandwidth):
            raise self._status.fail(errno.EINVAL, "Cannot pseudo-lock MBA resource")
        while text:
            token, _, text = text.partition(";")
            name, equals, value = token.partition("=")
            try:
                domain = kernel_number(name if equals else "", 10, _ULONG)
            except ResctrlError:
                raise self._status.fail(errno.EINVAL, "Missing '=' or non-numeric domain") from None
            if domain not in self.domains(schema):
                raise ResctrlError(errno.EINVAL)
            if (schema.name, domain) in staged:
                raise self._status.fail(errno.EINVAL, f"Duplicate domain {domain}")
            self._stage(group, schema, domain, value.strip(SPACE), staged)
            if group.mode == LOCKSETUP:
                group.locked = (schema.name, domain, staged[schema.name, domain])
                return

    def _stage(self, group: Group, schema: Schema, domain: int, text: str, staged: dict[tuple[str, int], int]) -> None:
        if isinstance(schema.resource, Cache):
            staged[schema.name, domain] = self._mask(group, schema, domain, text)
            return
        value = self._bandwidth(schema, text)
        if schema.mbps:
            self.put(schema, domain, group.closid, value)
        else:
            staged[schema.name, domain] = value

    def _bandwidth(self, schema: Schema, text: str) -> int:
        resource = schema.resource
        assert isinstance(resource, Bandwidth)
        if resource.needs_linear and not resource.linear:
            raise self._status.fail(errno.EINVAL, "No support for non-linear MB domains")
        try:
            value = kernel_number(text, 10, _UINT)
        except ResctrlError:
            raise self._status.fail(errno.EINVAL, f"Invalid MB value {text}") from None
        if schema.mbps:
            return value
        if not resource.minimum <= value <= resource.maximum:
            raise self._status.fail(
                errno.EINVAL, f"MB value {value} out of range [{resource.minimum},{resource.maximum}]"
            )
        return -(-value // resource.gran) * resource.gran

    def _mask(self, group: Group, schema: Schema, domain: int, text: str) -> int:
        if group.mode == LOCKSETUP and self.locked_bits(schema, domain):
            raise self._status.fail(errno.EINVAL, "Pseudo-locked region in hierarchy")
        assert isinstance(schema.resource, Cache)
        mask = self.valid_mask(schema.resource, text)
        if group.mode in {EXCLUSIVE, SHAREABLE} and mask & self.locked_bits(schema, domain):
            raise self._status.fail(errno.EINVAL, "CBM overlaps with pseudo-locked region")
        if self.overlaps(schema, domain, mask, group.closid, True):
            raise self._status.fail(errno.EINVAL, "Overlaps with exclusive group")
        if group.mode != SHAREABLE and self.overlaps(schema, domain, mask, group.closid, False):
            raise self._status.fail(errno.EINVAL, "Overlaps with other group")
        return mask

    def valid_mask(self, cache: Cache, text: str) -> int:
        """A mask as `cache` can hold it; the rule of fewest bits looks at the first run only."""
        try:
            mask = kernel_number(text, 16, _ULONG)
        except ResctrlError:
            raise self._status.fail(errno.EINVAL, f"Non-hex character in the mask {text}") from None
        if (cache.min_cbm_bits > 0 and mask == 0) or mask > cache.full:
            raise self._status.fail(errno.EINVAL, "Mask out of range")
        run = first_run(mask)
        if not cache.sparse and run != mask:
            raise self._status.fail(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if run.bit_count() < cache.min_cbm_bits:
            raise self._status.fail(errno.EINVAL, f"Need at least {cache.min_cbm_bits} bits in the mask")
        return mask

    def start(self, closid: int) -> None:
        """Values of a new class: what is shareable or unused, cut to its lowest run; bandwidth wide open.

        Raises ResctrlError ENOSPC when exclusive groups hold too much.
        """
        for schema in self.schemas:
            values = {
                domain: self._start_mask(schema, domain, closid)
                if isinstance(schema.resource, Cache)
                else self.widest(schema)
                for domain in self.domains(schema)
            }
            for domain, value in values.items():
                self.put(schema, domain, closid, value)

    def _start_mask(self, schema: Schema, domain: int, closid: int) -> int:
        cache = schema.resource
        assert isinstance(cache, Cache)
        mask = used = cache.shareable_bits
        for group in self.groups():
            if group.closid == closid or group.mode in {LOCKSETUP, LOCKED}:
                continue
            for peer in self.peers(schema):
                held = self.value(peer, domain, group.closid)
                used |= held
                mask |= held if group.mode == SHAREABLE else 0
        used |= self.locked_bits(schema, domain)
        mask = first_run(mask | (cache.full & ~used))
        if mask.bit_count() < cache.min_cbm_bits:
            raise self._status.fail(errno.ENOSPC, f"No space on {schema.name}:{domain}")
        return mask

    def may_be_exclusive(self, group: Group) -> None:
        """Raises ResctrlError EINVAL where the group's masks hit anyone, or there is no cache control."""
        caches = [schema for schema in self.schemas if isinstance(schema.resource, Cache)]
        for schema in caches:
            for domain in self.domains(schema):
                mask = self.value(schema, domain, group.closid)
                if self.overlaps(schema, domain, mask, group.closid, False):
                    raise self._status.fail(errno.EINVAL, "Schemata overlaps")
        if not caches:
            raise self._status.fail(errno.EINVAL, "Cannot be exclusive without CAT/CDP")

    def text(self, group: Group) -> str:
        """The file schemata."""
        if group.mode == LOCKSETUP:
            return "".join(f"{schema.name}:uninitialized\n" for schema in self._printed())
        if group.mode == LOCKED:
            name, domain, mask = self.locked(group)
            return f"{name}:{domain}={mask:x}\n"
        return "".join(
            f"{schema.name:>{self._width()}}:{self.domains_text(schema, group.closid)}\n"
            for schema in self._printed()
            if group.closid < schema.num_closids
        )

    def domains_text(self, schema: Schema, closid: int) -> str:
        """Domains and values as schemata prints them."""
        cells = []
        for domain in self.domains(schema):
            value = self.value(schema, domain, closid)
            width = self._value_width() if self._profile.padded else 0
            digits = f"{value:0{width}x}" if isinstance(schema.resource, Cache) else f"{value:{width}d}"
            cells.append(f"{domain}={digits}")
        return ";".join(cells)

    def sizes(self, group: Group) -> str:
        """The file size: bytes instead of masks, bandwidth as it is."""
        if group.mode == LOCKED:
            name, domain, mask = self.locked(group)
            schema = self.schema(name)
            assert schema is not None
            return f"{name:>{self._width()}}:{domain}={_bytes(schema, mask)}\n"
        lines = []
        for schema in self._printed():
            cells = [
                f"{domain}={0 if group.mode == LOCKSETUP else _bytes(schema, self.value(schema, domain, group.closid))}"
                for domain in self.domains(schema)
            ]
            lines.append(f"{schema.name:>{self._width()}}:{';'.join(cells)}\n")
        return "".join(lines)

    def bit_usage(self, schema: Schema) -> str:
        """Who uses each bit, highest first."""
        cache = schema.resource
        assert isinstance(cache, Cache)
        cells = []
        for domain in self.domains(schema):
            hardware = cache.shareable_bits
            if self.hardware_class is not None and cache.io_alloc:
                hardware |= self.value(schema, domain, self.hardware_class)
            shared = exclusive = 0
            for group in self.groups():
                held = self.value(schema, domain, group.closid)
                shared |= held if group.mode == SHAREABLE else 0
                exclusive |= held if group.mode == EXCLUSIVE else 0
            locked = self.locked_bits(schema, domain)
            letters = (_letter(bit, hardware, shared, exclusive, locked) for bit in range(cache.cbm_len - 1, -1, -1))
            cells.append(f"{domain}={''.join(letters)}")
        return ";".join(cells) + "\n"

    def _printed(self) -> list[Schema]:
        if not self._profile.old_order:
            return self.schemas
        order = {"L3": 0, "L3DATA": 1, "L3CODE": 2, "L2": 3, "L2DATA": 4, "L2CODE": 5, "MB": 6}
        return sorted(self.schemas, key=lambda schema: order.get(schema.name, 7))

    def _width(self) -> int:
        """Names are as wide as they would be with CDP where that is possible."""
        return max(
            len(schema.name)
            + 4 * (isinstance(schema.resource, Cache) and schema.resource.cdp_capable and not schema.part)
            for schema in self.schemas
        )

    def _value_width(self) -> int:
        return max(
            -(-schema.resource.cbm_len // 4)
            if isinstance(schema.resource, Cache)
            else len(str(schema.resource.maximum))
            for schema in self.schemas
        )


def first_run(mask: int) -> int:
    """The lowest bits that stand together."""
    if not mask:
        return 0
    lowest = mask & -mask
    return mask & ~(mask + lowest)


def _bytes(schema: Schema, value: int) -> int:
    if isinstance(schema.resource, Bandwidth):
        return value
    return schema.resource.bytes // schema.resource.cbm_len * value.bit_count()


def _letter(bit: int, hardware: int, shared: int, exclusive: int, locked: int) -> str:
    if hardware >> bit & 1:
        return "X" if shared >> bit & 1 else "H"
    for letter, mask in (("S", shared), ("E", exclusive), ("P", locked)):
        if mask >> bit & 1:
            return letter
    return "0"
