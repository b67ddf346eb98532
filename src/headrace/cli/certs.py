"""`headrace certs`: an authority of one's own, certificates of brokers and clients, and the settings that use them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Json
from headrace.cli.output import print_json, styled, usage
from headrace.config import format_properties

if TYPE_CHECKING:
    from headrace.certificates import Authority

DEFAULT_DIRECTORY = Path("certs")
_AUTHORITY = "authority"


def command(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files are.")] = DEFAULT_DIRECTORY,
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="NAME[=HOST,…]", help="A broker, and the names that clients connect to."),
    ] = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client that shows a certificate.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long they are valid.")] = 365,
    as_json: Json = False,
) -> None:
    """Make an authority and certificates for a trial: `headrace certs --client alice`.

    Run again, it makes more by the same authority; a certificate of the same name is replaced, which running brokers
    take up by themselves. Without --broker there is one for this machine.
    """
    from headrace.certificates import THIS_MACHINE

    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _authority(directory)
    made: list[dict[str, Any]] = []
    wanted = [(*_split(text), False) for text in brokers or (["broker"] if not clients else [])]
    wanted += [(name, (), True) for name in clients or ()]
    if not brokers and clients and not (directory / "broker.pem").exists():
        wanted.insert(0, ("broker", (), False))
    for name, hosts, is_client in wanted:
        if name == _AUTHORITY or "/" in name or name.startswith("."):
            raise usage(f"{name!r} cannot be the name of a file in {directory}")
        try:
            identity = authority.issue(name, hosts or THIS_MACHINE, days=days, is_client=is_client)
        except ValueError as error:
            raise usage(str(error)) from None
        path = identity.save(directory / f"{name}.pem")
        made.append({"file": str(path), "name": name, "client": is_client})
    settings = _settings(directory.absolute(), made)
    if as_json:
        print_json({"authority": str(directory / f"{_AUTHORITY}.pem"), "certificates": made, **settings})
        return
    for one in made:
        print(f"{one['file']}  {'client' if one['client'] else 'broker'} CN={one['name']}, valid for {days} days")
    for title, values in settings.items():
        print()
        print(styled(f"# {title}.properties", "2"))
        print(format_properties(values), end="")


def _authority(directory: Path) -> Authority:
    """The one of this directory, made when it is not there: its certificate is for everyone, its key for nobody."""
    from headrace.certificates import Authority

    secret, public = directory / f"{_AUTHORITY}.key", directory / f"{_AUTHORITY}.pem"
    try:
        authority = Authority.load(secret.read_text())
    except FileNotFoundError:
        if public.exists():
            raise usage(
                f"{public} is there, and not its key ({secret.name}): put it back, or use another --dir"
            ) from None
        authority = Authority()
        authority.save(secret)
    except ValueError as error:
        raise usage(f"{secret} cannot be used: {error}") from None
    public.write_text(authority.certificate)
    return authority


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, hosts = text.partition("=")
    return name, tuple(host.strip() for host in hosts.split(",") if host.strip())


def _settings(directory: Path, made: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What to put into the properties of a broker and of a client."""
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(directory / f"{_AUTHORITY}.pem")}
    asks = {"ssl.client.auth": "required"} if any(one["client"] for one in made) else {}
    brokers = [one["name"] for one in made if not one["client"]]
    if asks and len(brokers) > 1:
        # Each has a name of its own: what brokers send each other is taken from these.
        asks["super.users"] = ";".join(f"User:CN={name}" for name in brokers)
    found = {}
    for one in made:
        title = "client" if one["client"] else "server"
        if title not in found:
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / f"{one['name']}.pem")}
            first = {"security.protocol": "SSL"} if one["client"] else {"listeners": "SSL://:9093"}
            found[title] = {**first, **own, **trust, **({} if one["client"] else asks)}
    found.setdefault("client", {"security.protocol": "SSL", **trust})
    return found
