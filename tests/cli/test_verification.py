"""``fedunlearn verify``: what it checks, what it says, and how it refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")
from support.certificates import certified, keys

from fedunlearn.erasure.claim import Claim
from fedunlearn.erasure.vocabulary import EndState
from fedunlearn.evidence import Verdict


@pytest.fixture
def made(tmp_path):
    found = certified(tmp_path, verdict=Verdict.UNDER)
    (tmp_path / "certificate.json").write_text(found.document)
    (tmp_path / "controller.pub").write_bytes(found.public)
    (tmp_path / "stranger.pub").write_bytes(keys(2)[1])
    return found


def test_it_says_what_was_checked_and_what_the_claim_means(here, made):
    result = here("verify", "certificate.json", "--key", "controller.pub", "--model", "model.safetensors")
    assert result.returncode == 0, result.stderr
    assert "is genuine" in result.stdout
    claim = Claim.UNDER_FORGOTTEN
    for text in (claim, claim.headline, claim.meaning, *claim.limits, "model.safetensors is the model after"):
        assert text in result.stdout
    for untested in made.predicate.evidence.not_tested:
        assert untested.words in result.stdout
    checked, _, unchecked = result.stdout.partition("Not checked")
    assert "--ledger" not in checked
    assert "--ledger" in unchecked
    assert "--model" not in result.stdout


def test_an_exact_method_speaks_for_itself_also_in_an_old_certificate(here, tmp_path):
    """The words follow from the signed method, so a certificate of an earlier version has them, too."""
    made = certified(tmp_path, verdict=Verdict.INCONCLUSIVE, method="fast-retrain")
    (tmp_path / "certificate.json").write_text(made.document)
    (tmp_path / "controller.pub").write_bytes(made.public)
    told = here("verify", "certificate.json", "--key", "controller.pub").stdout
    assert "This model never saw the data that was to be forgotten: fast-retrain is exact" in " ".join(
        told.split()
    )
    assert made.predicate.exact in made.page
    for other in (
        certified(tmp_path / "fedosd"),
        certified(tmp_path / "stopped", method="retrain", end_state=EndState.GUARD_STOP),
    ):
        assert not other.predicate.exact
        assert "This model never saw" not in other.page


@pytest.mark.wording
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--key", "stranger.pub"], "signed with another key"),
        (["--key", "certificate.json"], "key"),
        (["--key", "controller.pub", "--model", "ledger.jsonl"], "is not the certified model"),
        (["--key", "controller.pub", "--ledger", "model.safetensors"], "entry 1 is damaged"),
        (["--key", "controller.pub", "--model", "none"], "cannot read none"),
    ],
)
def test_a_failed_check_is_one_sentence_and_exit_code_2(here, made, options, told):
    result = here("verify", "certificate.json", *options)
    assert result.returncode == 2
    assert result.stdout == ""
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.wording
def test_an_edited_certificate_is_refused(here, made, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(made.document.replace('"sig":"', '"sig":"A', 1))
    result = here("verify", "certificate.json", "--key", "controller.pub")
    assert result.returncode == 2
    assert "edited or forged" in result.stderr
