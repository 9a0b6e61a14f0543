"""A real HDFS on 127.0.0.1: a NameNode and a DataNode as two separate processes, from jars that Ivy fetches once."""

from __future__ import annotations

import http.client
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

import requests

from tests.support.processes import Child
from tests.support.programs.quick_java import QUICK
from tests.support.servers.jars import Module, jars, java
from tests.support.servers.server import Server

VERSION = "3.4.2"
SUPERUSER = getuser()
"""The user who started the name node. HDFS asks nobody for a password here."""
_HEAP = ("-Xms64m", "-Xmx192m", "-XX:+UseSerialGC", *QUICK.split(), "--add-opens", "java.base/java.lang=ALL-UNNAMED")
"""On Java 17, WebHDFS answers nothing without the last."""
_GROUP = "org.apache.hadoop"
_LIMIT_S = 150.0
_numbers = itertools.count()

_LOGGING = """
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
log4j.logger.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=INFO, audit
log4j.additivity.org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit=false
log4j.appender.audit=org.apache.log4j.FileAppender
log4j.appender.audit.File={folder}/audit.log
log4j.appender.audit.layout=org.apache.log4j.PatternLayout
log4j.appender.audit.layout.ConversionPattern=%m%n
"""


class HdfsNode(Server):
    """One process of HDFS, with its settings in `conf` of its folder."""

    product = "HDFS"
    main: str

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._jars = hdfs_jars()

    def settings(self) -> dict[str, object]:
        raise NotImplementedError

    def prepare(self) -> None:
        super().prepare()
        conf = self.folder / "conf"
        for pages in ("hdfs", "datanode"):
            (conf / "webapps" / pages).mkdir(parents=True, exist_ok=True)  # of pages for people, which no test needs
        common = {
            "hadoop.tmp.dir": self.folder / "tmp",
            "dfs.replication": 1,
            "dfs.blocksize": 8 << 20,
            "dfs.heartbeat.interval": 1,
            "dfs.permissions.enabled": True,
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{_text(value)}</value></property>\n"
            for name, value in {**common, **self.settings()}.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>\n{properties}</configuration>\n")
        (conf / "log4j.properties").write_text(_LOGGING.format(folder=self.folder))

    def java(self, *main: str) -> list[str | Path]:
        return [java(), *_HEAP, "-cp", f"{self.folder}/conf:{self._jars}/*", *main]

    def release(self) -> str:
        return VERSION

    def command(self) -> Sequence[str | Path]:
        return self.java(self.main)


class NameNode(HdfsNode):
    """The name node. Its first start formats it."""

    number_of_ports = 2
    main = "org.apache.hadoop.hdfs.server.namenode.NameNode"

    @property
    def http_port(self) -> int:
        return self.ports[1]

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def settings(self) -> dict[str, object]:
        return {
            "fs.defaultFS": self.url,
            "dfs.namenode.rpc-address": f"127.0.0.1:{self.port}",
            "dfs.namenode.http-address": f"127.0.0.1:{self.http_port}",
            "dfs.namenode.name.dir": f"file://{self.folder}/names",
            "dfs.namenode.edits.noeditlogchannelflush": True,  # a killed process loses nothing by it
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.heartbeat.recheck-interval": 60_000,  # a data node that only pauses is not dead for minutes
            "dfs.namenode.datanode.registration.ip-hostname-check": False,
            "dfs.namenode.handler.count": 8,
        }

    def prepare(self) -> None:
        super().prepare()
        if not (self.folder / "names").exists():
            command = self.java(self.main, "-format", "-nonInteractive")
            with Child(command, log=self.folder / "format.txt", limit_s=_LIMIT_S) as child:
                child.succeed()

    def answers(self) -> bool:
        return self.state() != ""

    def state(self) -> str:
        """Return `Operational`, `safeMode`, or nothing if it does not answer."""
        return str(self.beans("FSNamesystemState").get("FSState", ""))

    def beans(self, name: str) -> dict[str, Any]:
        return beans(self.http_port, "NameNode", name)


class DataNode(HdfsNode):
    """The data node of a name node."""

    number_of_ports = 3
    main = "org.apache.hadoop.hdfs.server.datanode.DataNode"

    def __init__(self, folder: Path, name_node: NameNode, host: str) -> None:
        super().__init__(folder)
        self._name_node = name_node
        self._host = host

    def settings(self) -> dict[str, object]:
        data, http, ipc = self.ports
        return {
            "fs.defaultFS": self._name_node.url,
            "dfs.namenode.rpc-address": f"127.0.0.1:{self._name_node.port}",
            "dfs.datanode.data.dir": f"file://{self.folder}/data",
            "dfs.datanode.hostname": self._host,
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"127.0.0.1:{http}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
            "dfs.datanode.handler.count": 4,
            "dfs.datanode.directoryscan.interval": -1,
            "dfs.datanode.scan.period.hours": -1,
            "fs.getspaceused.classname": "org.apache.hadoop.fs.DFCachingGetSpaceUsed",  # starts no processes
        }

    def answers(self) -> bool:
        found = self._name_node.beans("FSNamesystemState")
        if found.get("NumLiveDataNodes", 0) < 1 or found.get("FSState") != "Operational":
            return False
        # The name node may still count the data node that was killed before: this one tells whether it is registered.
        actors = json.loads(beans(self.ports[1], "DataNode", "DataNodeInfo").get("BPServiceActorInfo", "[]"))
        return bool(actors) and all(actor["ActorState"] == "RUNNING" for actor in actors)


class Hdfs:
    """A file system of one name node and one data node. It serves in a `with` block."""

    def __init__(self, folder: Path, *, data_host: str = "127.0.0.1") -> None:
        """`data_host` is the host that clients of the data node are told. It listens at 127.0.0.1 in any case."""
        self.folder = folder
        self.data_host = data_host
        self.name_node = NameNode(folder / "name-node")
        self.data_node = DataNode(folder / "data-node", self.name_node, data_host)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.name_node.start()
            self.data_node.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.data_node.kill()
        self.name_node.kill()

    @property
    def url(self) -> str:
        """The address for Hadoop and hdfs-native."""
        return self.name_node.url

    @property
    def webhdfs_url(self) -> str:
        return self.webhdfs_url_at(self.name_node.http_port)

    def webhdfs_url_at(self, port: int) -> str:
        return f"webhdfs://{SUPERUSER}@127.0.0.1:{port}"

    def new_folder(self) -> str:
        """Return the path of a folder that does not exist."""
        return f"/test-{next(_numbers)}"

    def restart_name_node(self) -> None:
        """Kill the name node and start it again. Return when the data node takes and gives bytes for it."""
        self.name_node.kill()
        self.start_name_node()

    def start_name_node(self) -> None:
        """Do so again after it was killed."""
        self.name_node.start()
        self._wait(self.data_node.answers, "the data node reported to the new name node")
        self._wait(self._takes_bytes, "the data node took bytes again")

    def restart_data_node(self) -> None:
        """Kill the data node and start it again. Return when it takes and gives bytes."""
        self.data_node.kill()
        self.data_node.start()
        self._wait(self._takes_bytes, "the new data node took bytes")

    def _takes_bytes(self) -> bool:
        try:
            self.write("/ready", b"x")
            return self.read("/ready") == b"x"
        except requests.RequestException:
            return False

    def safe_mode(self, verb: str) -> None:
        """Let the name node `enter` or `leave` safe mode."""
        self.admin("-safemode", verb)

    @contextmanager
    def in_safe_mode(self) -> Iterator[None]:
        self.safe_mode("enter")
        try:
            yield
        finally:
            self.safe_mode("leave")

    def set_quota(self, path: str, *, names: int = -1, space: int = -1) -> None:
        """Limit the names or the bytes below a folder. -1 lifts the limit."""
        self.ask("PUT", path, op="SETQUOTA", namespacequota=names, storagespacequota=space)

    def set_permission(self, path: str, octal: str) -> None:
        self.ask("PUT", path, op="SETPERMISSION", permission=octal)

    def make_folder(self, path: str) -> None:
        self.ask("PUT", path, op="MKDIRS")

    def files(self, path: str) -> dict[str, int]:
        """Return every file below a folder with its length, hidden ones too, as the name node has them."""
        try:
            entries = self.ask("GET", path, op="LISTSTATUS")["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return {}
        found: dict[str, int] = {}
        for entry in entries:
            name = entry["pathSuffix"]
            if entry["type"] == "FILE":
                found[name] = entry["length"]
            else:
                found |= {f"{name}/{below}": size for below, size in self.files(f"{path}/{name}").items()}
        return found

    def read(self, path: str) -> bytes:
        """Return the bytes of a file, from the data node."""
        return self._at_data_node("GET", path, op="OPEN").content

    def write(self, path: str, data: bytes) -> None:
        """Write a file, or replace it."""
        self._at_data_node("PUT", path, data, op="CREATE", overwrite="true")

    def _at_data_node(self, method: str, path: str, data: bytes = b"", **arguments: str) -> requests.Response:
        """Send a request of WebHDFS to which the name node answers with the address of the data node."""
        address = f"http://127.0.0.1:{self.name_node.http_port}/webhdfs/v1{quote(path)}"
        asked = {"user.name": SUPERUSER, **arguments}
        redirect = requests.request(method, address, params=asked, timeout=_LIMIT_S, allow_redirects=False)
        redirect.raise_for_status()
        location = redirect.headers["Location"].replace(f"//{self.data_host}:", "//127.0.0.1:")
        answer = requests.request(method, location, data=data, timeout=_LIMIT_S)
        answer.raise_for_status()
        return answer

    def ask(self, method: str, path: str, **arguments: object) -> Any:
        """Send one request of WebHDFS to the name node as its superuser. Return the answer's JSON, or None."""
        query = urlencode({"user.name": SUPERUSER, **arguments})
        address = f"http://127.0.0.1:{self.name_node.http_port}/webhdfs/v1{quote(path)}?{query}"
        request = urllib.request.Request(address, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(path) from error
            raise
        return json.loads(text) if text else None

    def admin(self, *arguments: str) -> str:
        """Run one command of `hdfs dfsadmin`."""
        command = self.name_node.java("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)
        with Child(command, log=self.folder / f"admin-{next(_numbers)}.txt", limit_s=_LIMIT_S) as child:
            return child.succeed()

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Yield the calls that arrive at the name node inside the block, as `asked` tells them. Complete at its end."""
        before, seen = len(self.asked()), list[str]()
        yield seen
        seen += self.asked()[before:]

    def asked(self) -> list[str]:
        """Return all calls of the name node so far: command, path, and a rename's new path."""
        asked = []
        for line in (self.name_node.folder / "audit.log").read_text().splitlines():
            said = {name: value for name, _, value in (field.partition("=") for field in line.split("\t"))}
            if "cmd" in said:
                parts = (said["cmd"].split()[0], said["src"], said["dst"])
                asked.append(" ".join(part for part in parts if part != "null"))
        return asked

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_LIMIT_S} s: {what}")
            time.sleep(0.1)


def hdfs_jars() -> Path:
    """Return the folder of the jars of both nodes. Skip or fail the test if they are not available."""
    needed = [Module(_GROUP, name, (VERSION,), with_what_it_needs=True) for name in ("hadoop-hdfs", "hadoop-common")]
    return jars(f"hdfs-{VERSION}", [*needed, Module(_GROUP, "hadoop-hdfs-client", (VERSION,))])


def beans(http_port: int, service: str, name: str) -> dict[str, Any]:
    """Return what a node tells of itself, or nothing if it does not answer."""
    address = f"http://127.0.0.1:{http_port}/jmx?qry=Hadoop:service={service},name={name}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            found = json.load(answer)["beans"]
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return dict(found[0]) if found else {}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
