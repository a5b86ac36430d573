"""`checkpointed`: a server's class with the layer that keeps its state. Nothing of NeMo Gym is edited.

The subclass has the name of its parent: the cookie of a session, its secret and the tokens of MCP all come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from unbroken.adapters.nemo_gym.control import Capability, Role
from unbroken.adapters.nemo_gym.options import Options, Wishes, resolve
from unbroken.errors import ConfigError

_MARK = "__unbroken__"
"""Marks our `setup_webserver`. A class has two layers otherwise, which want the same log."""


def checkpointed(
    cls: type,
    *,
    directory: Path | str | None = None,
    capability: Capability | None = None,
    exclude: Collection[str] = (),
    log_states: bool = False,
    retire_after_verify: bool = False,
) -> type:
    """Return a subclass of a NeMo Gym server, of the same name, whose state survives its process.

    Args:
        cls: a resources server, an agent, or a model server.
        directory: where its log lies; $UNBROKEN_GYM_DIR and the server's name in it, if not given.
        capability: how its sessions come back; found by looking at the server, if not given.
        exclude: attributes that are no state.
        log_states: write a session's state after every call, for servers whose calls cannot be executed again.
        retire_after_verify: free a session's memory once it is verified.

    Raises:
        ConfigError: `cls` is no server of NeMo Gym, or an argument cannot be used.

    Example:
        checkpointed(MyResourcesServer).run_webserver()
    """
    role = role_of(cls)
    wishes = Wishes(
        directory=directory,
        capability=capability,
        exclude=exclude,
        log_states=log_states,
        retire_after_verify=retire_after_verify,
    )
    wishes.check()
    if any(getattr(vars(base).get("setup_webserver"), _MARK, False) for base in cls.__mro__):
        if wishes != Wishes():
            raise ConfigError(
                f"{cls.__name__} is checkpointed already, and its options are given there.",
                hint="Wrap it once.",
            )
        return cls
    parent: Any = cls

    def setup_webserver(self: Any) -> Any:
        app = parent.setup_webserver(self)
        _attach(role)(self, app, _options(self, wishes))
        return app

    setattr(setup_webserver, _MARK, True)
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "setup_webserver": setup_webserver,
    }
    if role == "agent":

        def model_post_init(self: Any, context: Any) -> None:
            from unbroken.adapters.nemo_gym.agent.attach import prepare

            parent.model_post_init(self, context)
            prepare(self, _options(self, wishes))

        body["model_post_init"] = model_post_init
    return type(cls)(cls.__name__, (cls,), body)


def role_of(cls: type) -> Role:
    """Return what kind of server a class is, by what it can do.

    Raises:
        ConfigError: it is none.
    """
    missing = [name for name in ("setup_webserver", "get_session_middleware_key") if not hasattr(cls, name)]
    if missing or not isinstance(cls, type):
        raise ConfigError(
            f"{getattr(cls, '__name__', cls)!r} is no server of NeMo Gym: it has no {' and no '.join(missing)}.",
            hint="Give the class of a resources server, an agent or a model server.",
        )
    if hasattr(cls, "run") and hasattr(cls, "responses"):
        return "agent"
    if hasattr(cls, "chat_completions") and hasattr(cls, "responses"):
        return "model"
    return "resources"


def _options(server: Any, wishes: Wishes) -> Options:
    return resolve(wishes, name=str(getattr(server.config, "name", "") or ""))


def _attach(role: Role) -> Callable[[Any, Any, Options], None]:
    if role == "agent":
        from unbroken.adapters.nemo_gym.agent.attach import attach as attach_agent

        return attach_agent
    if role == "model":
        from unbroken.adapters.nemo_gym.model.attach import attach as attach_model

        return attach_model
    from unbroken.adapters.nemo_gym.server.attach import attach as attach_resources

    return attach_resources
