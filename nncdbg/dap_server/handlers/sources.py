"""Sources of a program, locations of definitions, and modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.protocol.requests import LoadedSourcesBody, LocationsBody, ModulesBody, SourceBody
from nncdbg.dap_server.protocol.types import Source
from nncdbg.dap_server.registry import LIVE, request
from nncdbg.dap_server.sources.definitions import definition_at
from nncdbg.dap_server.sources.modules import COLUMNS
from nncdbg.dap_server.sources.shown import MIME_TYPE
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.protocol.requests import (
        LoadedSourcesArguments,
        LocationsArguments,
        ModulesArguments,
        SourceArguments,
    )
    from nncdbg.dap_server.session import Session


@request("source", when=LIVE, reads=True)
def source_text(session: Session, arguments: SourceArguments) -> SourceBody:
    # `sourceReference` is for old clients; newer ones send `source`.
    source = arguments.source or Source(source_reference=arguments.source_reference)
    return SourceBody(content=session.program.sources.text(source), mime_type=MIME_TYPE)


@request("loadedSources", when=LIVE, capability="supportsLoadedSourcesRequest", reads=True)
def sources(session: Session, arguments: LoadedSourcesArguments) -> LoadedSourcesBody:
    return LoadedSourcesBody(sources=session.program.modules.loaded_sources())


@request(
    "modules",
    when=LIVE,
    capability={"supportsModulesRequest": True, "additionalModuleColumns": COLUMNS},
    reads=True,
)
def listed_modules(session: Session, arguments: ModulesArguments) -> ModulesBody:
    found = session.program.modules.all()
    start = arguments.start_module or 0
    count = arguments.module_count or 0
    if start < 0 or count < 0:
        raise UsageError(f"`startModule` and `moduleCount` must be 0 or more, not {start} and {count}")
    end = start + count if count else len(found)
    return ModulesBody(modules=found[start:end], total_modules=len(found))


@request("locations", when=LIVE, reads=True)
def locations(session: Session, arguments: LocationsArguments) -> LocationsBody:
    found = definition_at(session, arguments.location_reference)
    if found is None:
        raise UsageError("unknown or expired location reference", hint="request the variables again")
    source, line = found
    return LocationsBody(source=source, line=session.client.outgoing_line(line))
