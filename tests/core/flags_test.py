"""Flags made from dataclasses, and dataclasses fed from flags."""

import dataclasses
import enum
import typing

import pytest
from absl import flags

from monolith.core import flags as core_flags
from monolith.native_training import gflags_utils

FLAGS = flags.FLAGS


class Discovery(enum.Enum):
    PRIMUS = 1
    CONSUL = 2


class BaseConfig:
    """Settings of every job.

    :param flags_test_base: Field of the base class.
    :param flags_test_num: Replaced below.
    """

    flags_test_base: str = "base"


@dataclasses.dataclass
class Config(BaseConfig):
    """Settings of one job.

    :param flags_test_num: Number of things,
        with a second line
        and a third.
    :param flags_test_on: Whether it is on.

    This line belongs to no parameter.

    :param str flags_test_text: A text.
    :param flags_test_rate: A rate.
    :param flags_test_discovery: How peers are found.
    :param flags_test_maybe: May be unset.
    :param flags_test_either: May be unset, older spelling.
    :param flags_test_names: A type that no flag has.
    :returns: Nothing.
    """

    flags_test_num: int = 1
    flags_test_on: bool = False
    flags_test_text: str = "text"
    flags_test_rate: float = 0.5
    flags_test_discovery: Discovery = Discovery.CONSUL
    flags_test_maybe: int | None = None
    flags_test_either: typing.Optional[str] = None  # noqa: UP045
    flags_test_names: dict[str, int] = dataclasses.field(default_factory=dict)
    flags_test_undocumented: int = 3


@pytest.fixture(autouse=True)
def clean_flags():
    """Removes the flags that a test defines, so that tests do not depend on their order."""
    before = set(FLAGS)
    yield
    for name in set(FLAGS) - before:
        delattr(FLAGS, name)


def defined_flags():
    return {name for name in FLAGS if name.startswith("flags_test_")}


class TestHelpInfo:
    def test_own_and_inherited_texts(self):
        assert core_flags.extract_help_info(Config) == {
            "flags_test_base": "Field of the base class.",
            "flags_test_num": "Number of things, with a second line and a third.",
            "flags_test_on": "Whether it is on.",
            "flags_test_text": "A text.",
            "flags_test_rate": "A rate.",
            "flags_test_discovery": "How peers are found.",
            "flags_test_maybe": "May be unset.",
            "flags_test_either": "May be unset, older spelling.",
            "flags_test_names": "A type that no flag has.",
        }

    def test_own_texts_only(self):
        assert "flags_test_base" not in core_flags.extract_help_info(Config, is_nested=False)

    def test_class_without_docstring(self):
        class Silent(BaseConfig):
            pass

        assert core_flags.extract_help_info(Silent, is_nested=False) == {}
        assert "flags_test_base" in core_flags.extract_help_info(Silent)


class TestExtractFlags:
    def test_documented_fields_become_flags(self):
        core_flags.extract_flags(flags, Config)
        assert defined_flags() == {
            "flags_test_base",
            "flags_test_num",
            "flags_test_on",
            "flags_test_text",
            "flags_test_rate",
            "flags_test_discovery",
            "flags_test_maybe",
            "flags_test_either",
        }
        assert {name: FLAGS[name].default for name in defined_flags()} == {
            "flags_test_base": "base",
            "flags_test_num": 1,
            "flags_test_on": False,
            "flags_test_text": "text",
            "flags_test_rate": 0.5,
            "flags_test_discovery": "consul",
            "flags_test_maybe": None,
            "flags_test_either": None,
        }
        assert FLAGS["flags_test_num"].help == "Number of things, with a second line and a third."

    def test_values_are_parsed_by_type(self):
        core_flags.extract_flags(flags, Config)
        for name, text, value in [
            ("flags_test_num", "7", 7),
            ("flags_test_on", "true", True),
            ("flags_test_rate", "0.25", 0.25),
            ("flags_test_discovery", "primus", "primus"),
            ("flags_test_maybe", "8", 8),
        ]:
            FLAGS[name].parse(text)
            assert FLAGS[name].value == value
        with pytest.raises(flags.IllegalFlagValueError):
            FLAGS["flags_test_discovery"].parse("telepathy")

    def test_flags_belong_to_the_module_of_the_class(self):
        core_flags.extract_flags(flags, Config)
        assert FLAGS.find_module_defining_flag("flags_test_num") == Config.__module__

    def test_skipped_fields(self):
        core_flags.extract_flags(flags, Config, skip_flags=["flags_test_num"])
        assert "flags_test_num" not in FLAGS
        assert "flags_test_on" in FLAGS

    def test_base_fields_are_left_out_on_request(self):
        core_flags.extract_flags(flags, Config, is_nested=False)
        assert "flags_test_base" not in FLAGS
        assert "flags_test_num" in FLAGS

    def test_existing_flag_is_kept(self):
        flags.DEFINE_integer("flags_test_num", 99, "Defined elsewhere.")
        core_flags.extract_flags(flags, Config)
        assert FLAGS["flags_test_num"].default == 99

    def test_decorator(self):
        decorated = core_flags.extract_flags_decorator(
            remove_flags={"flags_test_on"}, is_nested=False
        )(Config)
        assert decorated is Config
        assert {"flags_test_on", "flags_test_base"}.isdisjoint(defined_flags())
        assert "flags_test_num" in FLAGS

    def test_defaults_of_dataclasses_with_slots(self):
        @dataclasses.dataclass(slots=True)
        class Slotted:
            """Settings.

            :param flags_test_num: A number.
            :param flags_test_needed: Has no default.
            """

            flags_test_needed: str
            flags_test_num: int = 4

        core_flags.extract_flags(flags, Slotted)
        assert FLAGS["flags_test_num"].default == 4
        assert FLAGS["flags_test_needed"].default is None


class TestUpdate:
    @pytest.fixture(autouse=True)
    def defined(self):
        core_flags.extract_flags(flags, Config)

    def test_flag_replaces_a_default(self):
        FLAGS["flags_test_num"].value = 3
        config = Config()
        core_flags.update(config)
        assert config.flags_test_num == 3

    def test_code_wins(self):
        FLAGS["flags_test_num"].value = 3
        config = Config(flags_test_num=2)
        core_flags.update(config)
        assert config.flags_test_num == 2

    def test_unset_flags_change_nothing(self):
        config = Config(flags_test_text="x")
        core_flags.update(config)
        assert config == Config(flags_test_text="x")

    def test_enum(self):
        FLAGS["flags_test_discovery"].value = "primus"
        config = Config()
        core_flags.update(config)
        assert config.flags_test_discovery is Discovery.PRIMUS

    def test_inherited_and_optional_fields(self):
        FLAGS["flags_test_base"].value = "other"
        FLAGS["flags_test_maybe"].value = 5
        config = Config()
        core_flags.update(config)
        assert (config.flags_test_base, config.flags_test_maybe) == ("other", 5)

    def test_fields_without_flag_are_left_alone(self):
        config = Config(flags_test_undocumented=4)
        core_flags.update(config)
        assert config.flags_test_undocumented == 4


class TestLink:
    @pytest.fixture(autouse=True)
    def defined(self):
        flags.DEFINE_string("flags_test_link", "default", "For this test.")
        flags.DEFINE_integer("flags_test_other", 0, "For this test.")

    def test_same_name(self):
        @core_flags.LinkDataclassToFlags(linked_list=["flags_test_link"])
        @dataclasses.dataclass
        class Linked:
            flags_test_link: str = "default"

        assert Linked().flags_test_link == "default"
        FLAGS["flags_test_link"].value = "a"
        assert Linked().flags_test_link == "a"
        assert Linked(flags_test_link="b").flags_test_link == "b"

    def test_other_name(self):
        @core_flags.LinkDataclassToFlags(linked_map={"text": "flags_test_link"})
        @dataclasses.dataclass
        class Linked:
            text: str = None

        # The flag is at its own default, which differs from that of the field.
        assert Linked().text is None
        FLAGS["flags_test_link"].value = "a"
        assert Linked().text == "a"

    def test_links_are_inherited(self):
        @core_flags.LinkDataclassToFlags(linked_map={"text": "flags_test_link"})
        @dataclasses.dataclass
        class Linked:
            text: str = "default"

        @core_flags.update_by_flags
        @dataclasses.dataclass
        class Derived(Linked):
            number: int = 0

        @core_flags.LinkDataclassToFlags(linked_map={"number": "flags_test_other"})
        @dataclasses.dataclass
        class MoreDerived(Derived):
            pass

        FLAGS["flags_test_link"].value = "a"
        FLAGS["flags_test_other"].value = 5
        assert Derived() == Derived(text="a", number=0)
        assert Derived(text="b").text == "b"
        assert MoreDerived() == MoreDerived(text="a", number=5)
        # A link of a subclass does not reach its base class.
        assert Derived().number == 0

    def test_frozen_dataclass(self):
        @core_flags.LinkDataclassToFlags(linked_map={"text": "flags_test_link"})
        @dataclasses.dataclass(frozen=True)
        class Linked:
            text: str = "default"

        FLAGS["flags_test_link"].value = "a"
        assert Linked().text == "a"

    def test_unknown_field(self):
        with pytest.raises(ValueError, match=r"^missing is not a valid attribute of"):
            core_flags.LinkDataclassToFlags(linked_map={"missing": "flags_test_link"})(Config)

    def test_unknown_flag(self):
        with pytest.raises(ValueError, match=r"^no_such_flag is not defined in gflags$"):
            core_flags.LinkDataclassToFlags(linked_map={"flags_test_num": "no_such_flag"})(Config)

    def test_only_dataclasses(self):
        with pytest.raises(AssertionError, match="not a dataclass"):
            core_flags.LinkDataclassToFlags(linked_list=["flags_test_base"])(BaseConfig)


class TestParser:
    def test_good_command_line(self):
        values = flags.FlagValues()
        flags.DEFINE_integer("flags_test_num", 1, "For this test.", flag_values=values)
        parse = core_flags.get_flags_parser(flags, values)
        assert parse(["program", "--flags_test_num=3", "rest"]) == ["program", "rest"]
        assert values.flags_test_num == 3

    @pytest.mark.parametrize("argument", ["--unknown_flag=1", "--flags_test_num=many"])
    def test_bad_command_line(self, caplog, argument):
        values = flags.FlagValues()
        flags.DEFINE_integer("flags_test_num", 1, "For this test.", flag_values=values)
        parse = core_flags.get_flags_parser(flags, values)
        with pytest.raises(SystemExit) as raised:
            parse(["program", argument])
        assert raised.value.code == 1
        assert argument.strip("-").partition("=")[0] in caplog.text


def test_historical_path():
    assert gflags_utils is core_flags
