"""Lists of features: what a line may hold, and how features are found."""

import pytest

from monolith import errors
from monolith.data import feature_list
from monolith.data.feature_list import FeatureList


def parse(tmp_path, text: str) -> FeatureList:
    path = tmp_path / "features.conf"
    path.write_text(text)
    return FeatureList.parse(path)


def test_features_are_found_by_name_prefix_and_slot(tmp_path):
    features = parse(
        tmp_path,
        "# what we have\n\nfeature_name=fc_user slot=1 method=vector args=3 # a comment\n"
        "feature_name=f_page slot=305 feature_version=2\n",
    )
    assert len(features) == 2
    assert features["user"] is features["fc_user"] is features[1]
    assert features["page"].settings == {"feature_version": "2"}
    assert "nobody" not in features
    assert 2 not in features
    assert features.get_feature_name_and_slot(2) == ("slot_2", 2)
    assert features.get_feature_name_and_slot("nobody") == ("nobody", None)
    assert feature_list.get_feature_name_and_slot(305) == ("f_page", 305)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user slot=1", "line 1 has 'user', but a feature is listed as key=value"),
        ("feature_name=a", "line 1 must have feature_name=NAME and slot=NUMBER"),
        ("feature_name=a slot=x", "line 1 must have feature_name=NAME and slot=NUMBER"),
        ("feature_name=a slot=32768", "from 0 to 32767"),
        ("feature_name=a slot=1\nfeature_name=b slot=1", "is in the list already"),
    ],
)
def test_what_is_no_feature_is_refused(tmp_path, text, message):
    with pytest.raises(errors.DataError, match=message):
        parse(tmp_path, text)


def test_a_missing_list_is_named():
    with pytest.raises(errors.DataError, match="There is no list of features 'nowhere'"):
        FeatureList.parse("nowhere")
