"""Pathfinder pictures: the label is what following the contour from the dots says."""

import numpy as np
import pytest
import torch
from torch import nn

from data.lra.contours import Picture, Style, dot_distance, draw, render
from data.lra.pathfinder import SHARD_ROWS, _grow_shard

TINY = {"size": 12, "marker_distance": 3.0, "contour_length": 2, "distractors": 0, "distractor_length": 2}
EASY = {"contour_length": 6, "distractors": 10, "distractor_length": 2}
INTERMEDIATE = {"contour_length": 9, "distractors": 6, "distractor_length": 3}
HARD = {"contour_length": 14, "distractors": 5, "distractor_length": 4}
LOOK = {
    "size": 32,
    "dash": 2.0,
    "thickness": 0.5,
    "gap": 1.0,
    "clearance": 1.5,
    "marker_radius": 1.5,
    "marker_distance": 7.0,
    "continuity": 1.0,
    "contrast": 0.75,
    "padding": 1,
}


@pytest.fixture(params=[TINY, EASY, INTERMEDIATE, HARD], ids=["tiny", "easy", "intermediate", "hard"])
def style(request: pytest.FixtureRequest) -> Style:
    return Style(**LOOK | request.param)


def joined(picture: Picture, style: Style) -> bool:
    """From one dot to the other by stepping from dash to dash across gaps, blind to which contour a dash is of."""
    dashes = np.concatenate(picture.contours)
    ends = dashes.reshape(-1, 2)  # ends 2 i and 2 i + 1 are of dash i
    start, goal = (np.linalg.norm(ends - marker, axis=1).argmin() // 2 for marker in picture.markers)
    distances = np.linalg.norm(ends[:, None] - ends, axis=-1).reshape(len(dashes), 2, len(dashes), 2).min((1, 3))
    reached, frontier = {start}, [start]
    while frontier:
        for following in np.flatnonzero(distances[frontier.pop()] < style.gap * 1.01):
            if following not in reached:
                reached.add(following)
                frontier.append(following)
    return goal in reached


@pytest.mark.parametrize("label", [False, True])
def test_the_label_is_what_following_the_contour_says(style: Style, label: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        picture = draw(rng, style, label)
        assert joined(picture, style) is label is picture.label


def test_contours_are_as_long_and_as_many_as_asked_and_keep_apart(style: Style) -> None:
    picture = draw(np.random.default_rng(1), style, True)
    assert [len(contour) for contour in picture.contours] == (
        [style.contour_length] * 2 + [style.distractor_length] * style.distractors
    )
    for number, contour in enumerate(picture.contours):
        lengths = np.linalg.norm(contour[:, 1] - contour[:, 0], axis=1)
        assert lengths == pytest.approx(np.full(len(contour), style.dash))
        others = np.concatenate([c.reshape(-1, 2) for i, c in enumerate(picture.contours) if i != number])
        nearest = np.linalg.norm(contour.reshape(-1, 1, 2) - others, axis=-1).min()
        assert nearest >= style.clearance
        assert (contour > style.padding).all()
        assert (contour < style.size - style.padding).all()


def test_rendering_puts_light_where_dashes_and_dots_are_and_nowhere_else() -> None:
    style = Style(**LOOK, **EASY)
    dash = np.array([[[10.5, 10.5], [10.5, 12.5]]])
    image = render(dash, np.array([[20.5, 20.5], [25.5, 5.5]]), style)
    assert image.dtype == np.uint8
    assert image[10, 10:13].tolist() == [191, 191, 191]
    assert image[20, 20] == image[25, 5] == 255
    assert image[:8].max() == image[13:18].max() == 0


def test_the_dots_are_told_by_their_brightness(style: Style) -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        picture = draw(rng, style, True)
        assert dot_distance(picture.image, style.contrast) == pytest.approx(
            np.linalg.norm(np.subtract(*picture.markers)), abs=1
        )
    assert dot_distance(np.zeros((32, 32), np.uint8), style.contrast) == 0


def test_images_are_balanced_and_all_different(style: Style) -> None:
    rows = _grow_shard(style, 0, 0)
    assert sum(label for _, label in rows) == SHARD_ROWS // 2
    assert len({image for image, _ in rows}) == SHARD_ROWS
    assert rows == _grow_shard(style, 0, 0)
    assert rows != _grow_shard(style, 0, 1)


def test_a_small_convolutional_network_learns_the_easy_level() -> None:
    """So the pictures hold the answer, though no single pixel does."""
    style, rng = Style(**LOOK, **EASY), np.random.default_rng(0)
    images = np.stack([draw(rng, style, bool(i % 2)).image for i in range(3000)])
    x, y = torch.from_numpy(images).unsqueeze(1) / 255, torch.arange(3000) % 2
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for dilation in (1, 2, 4, 1):
        layers += [
            nn.Conv2d(16, 16, 3, padding=dilation, dilation=dilation),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        ]
    network = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(7):
        for rows in torch.randperm(2500).split(50):
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        accuracy = (network(x[2500:]).argmax(1) == y[2500:]).float().mean()
    assert accuracy > 0.65  # chance 0.5, standard deviation 0.022
