"""A small org.freedesktop.systemd1 on a real bus, for tests: says on stdout what it was asked, one JSON a line."""

import json
import sys

import dbus
import dbus.mainloop.glib
import dbus.service
from gi.repository import GLib

MANAGER = "org.freedesktop.systemd1.Manager"


class Refusal(dbus.DBusException):
    def __init__(self, name, words):
        super().__init__(words, name="org.freedesktop.systemd1." + name)


def plain(value):
    """A value with the type that it had on the wire."""
    if isinstance(value, dbus.Array):
        return ["a" + str(value.signature), [plain(each) for each in value]]
    if isinstance(value, (dbus.Struct, tuple)):
        return [plain(each) for each in value]
    kinds = [(dbus.Boolean, "b"), (dbus.Byte, "y"), (dbus.UInt32, "u"), (dbus.UInt64, "t"), (dbus.Int32, "i"), (dbus.Int64, "x")]
    for kind, letter in kinds:
        if isinstance(value, kind):
            return [letter, int(value)]
    return ["s", str(value)]


class Manager(dbus.service.Object):
    units = set()
    stuck = {"old.scope"}
    jobs = 0

    def say(self, member, *words):
        print(json.dumps([member, *words]), flush=True)

    def job(self, unit, result, early):
        self.jobs += 1
        path = dbus.ObjectPath("/org/freedesktop/systemd1/job/%d" % self.jobs)
        number = dbus.UInt32(self.jobs)
        # Another's job first; and our own before the answer that names it, as a fast systemd does.
        self.JobRemoved(dbus.UInt32(0), dbus.ObjectPath("/other"), "other.scope", "failed")
        if early:
            self.JobRemoved(number, path, unit, result)
        else:
            GLib.timeout_add(50, lambda: self.JobRemoved(number, path, unit, result) and False)
        return path

    @dbus.service.signal(MANAGER, signature="uoss")
    def JobRemoved(self, number, path, unit, result):
        pass

    @dbus.service.method(MANAGER, in_signature="", out_signature="")
    def Subscribe(self):
        self.say("Subscribe")

    @dbus.service.method(MANAGER, in_signature="ssa(sv)a(sa(sv))", out_signature="o")
    def StartTransientUnit(self, name, mode, properties, auxiliary):
        if name in self.units or name in self.stuck:
            raise Refusal("UnitExists", "Unit %s was already loaded or has a fragment file." % name)
        self.units.add(name)
        self.say("StartTransientUnit", name, mode, [[str(key), plain(value)] for key, value in properties], len(auxiliary))
        return self.job(name, "failed" if "broken" in name else "done", early="early" in name)

    @dbus.service.method(MANAGER, in_signature="ss", out_signature="o")
    def StopUnit(self, name, mode):
        if name not in self.units:
            raise Refusal("NoSuchUnit", "Unit %s not loaded." % name)
        self.units.discard(name)
        self.say("StopUnit", name, mode)
        return self.job(name, "done", early=True)

    @dbus.service.method(MANAGER, in_signature="s", out_signature="")
    def ResetFailedUnit(self, name):
        self.stuck.discard(name)
        self.say("ResetFailedUnit", name)

    @dbus.service.method(MANAGER, in_signature="sba(sv)", out_signature="")
    def SetUnitProperties(self, name, runtime, properties):
        self.say("SetUnitProperties", name, bool(runtime), [[str(key), plain(value)] for key, value in properties])

    @dbus.service.method(MANAGER, in_signature="ssau", out_signature="")
    def AttachProcessesToUnit(self, name, below, processes):
        self.say("AttachProcessesToUnit", name, below, [int(each) for each in processes])

    @dbus.service.method("org.freedesktop.DBus.Properties", in_signature="ss", out_signature="v")
    def Get(self, interface, name):
        return {"Version": "257.13-1~deb13u1", "ControlGroup": "/user.slice/user-1000.slice/user@1000.service"}[name]


dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
connection = dbus.bus.BusConnection(sys.argv[1])
name = dbus.service.BusName("org.freedesktop.systemd1", connection)
manager = Manager(connection, "/org/freedesktop/systemd1")
manager.say("Ready")
GLib.MainLoop().run()
