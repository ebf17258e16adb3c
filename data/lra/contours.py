"""Pathfinder images: two dots and dashed contours; do the dots sit on the ends of one contour?

After the parameters of the images that Long Range Arena releases (drewlinsley/pathfinder), drawn by code of our own:
two long contours and several short ones, each a chain of dashes that turns gently, none touching another. In a positive
image the dots sit on both ends of one long contour, in a negative one on one end of each.

Shapes: P dashes, S pixels a side. Coordinates are (row, column) in pixels.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

TRIES = 16  # directions tried for the next dash before the chain steps back
STARTS = 40  # places tried for a contour before the picture is begun again
TURN = 0.35  # standard deviation of the turn from one dash to the next, in radians, times continuity
LARGEST_TURN = 0.9

Dash = tuple[float, float, float, float]  # row and column of its start and of its end


@dataclass(frozen=True)
class Style:
    """How images of one level look.

    Attributes:
        size: S. contour_length: dashes of each of the two long contours.
        distractors, distractor_length: number of short contours, and their dashes.
        dash: length of a dash. thickness: of a dash. gap: from the end of a dash to the start of the next.
        clearance: least distance between dashes that do not follow one another; above ``gap``, so that the eye and the
            tests can tell neighbours in a chain from neighbours by chance.
        marker_radius: of the dots. marker_distance: least distance between them.
        continuity: scales the turns. contrast: brightness of dashes, 0 to 1. padding: dark pixels around.
    """

    size: int
    contour_length: int
    distractors: int
    distractor_length: int
    dash: float
    thickness: float
    gap: float
    clearance: float
    marker_radius: float
    marker_distance: float
    continuity: float
    contrast: float
    padding: int


@dataclass(frozen=True)
class Picture:
    """One image and how it came about.

    Attributes:
        image: (S, S) uint8. label: whether the dots are joined.
        contours: end points (P, 2, 2) of the dashes of every contour, in order; the two long ones first.
        markers: centres (2, 2) of the dots.
    """

    image: np.ndarray
    label: bool
    contours: tuple[np.ndarray, ...]
    markers: np.ndarray


class _Board:
    """Places that dashes keep away from, as bits of one integer: asking, adding and going back cost next to nothing."""

    def __init__(self, style: Style) -> None:
        self.cells = max(2, 128 // style.size)  # a pixel
        # a point and its neighbours are rounded to a cell each, so the disc is larger by the diagonal of a cell
        radius = style.clearance * self.cells + math.sqrt(2)
        self.reach = math.floor(radius)
        self.side = style.size * self.cells + 2 * self.reach  # no disc runs over an edge
        self.disc = 0  # around the cell in row and column ``reach``
        for row in range(-self.reach, self.reach + 1):
            half = math.isqrt(int(radius**2 - row**2))
            self.disc |= ((1 << (2 * half + 1)) - 1) << ((row + self.reach) * self.side + self.reach - half)

    def is_free(self, taken: int, dash: Dash) -> bool:
        """Whether no point of ``dash`` lies in ``taken``."""
        centre = self.reach * self.side + self.reach
        return not any(taken >> (cell + centre) & 1 for cell in self._cells(dash))

    def take(self, taken: int, dash: Dash) -> int:
        """``taken`` and everything that is within the clearance of ``dash``."""
        for cell in self._cells(dash):
            taken |= self.disc << cell
        return taken

    def _cells(self, dash: Dash) -> list[int]:
        """Of both ends of a dash and its middle."""
        row, column, end_row, end_column = (x * self.cells for x in dash)
        return [
            int(row + part * (end_row - row)) * self.side + int(column + part * (end_column - column))
            for part in (0.0, 0.5, 1.0)
        ]


def draw(rng: np.random.Generator, style: Style, label: bool) -> Picture:
    """One picture; begun again until every contour finds its place."""
    uniform, normal = _stream(rng.random), _stream(rng.standard_normal)
    board = _Board(style)
    while True:
        taken, long = _grow_all(style, [style.contour_length] * 2, board, 0, uniform, normal)
        markers = _place_markers(style, long, label, uniform) if long else None
        if markers is None:
            continue
        lengths = [style.distractor_length] * style.distractors
        _, short = _grow_all(style, lengths, board, taken, uniform, normal)
        if short is not None:
            contours = tuple(np.array(contour).reshape(-1, 2, 2) for contour in [*long, *short])
            return Picture(render(np.concatenate(contours), markers, style), label, contours, markers)


def _stream(draw_many: Callable[[int], np.ndarray]) -> Iterator[float]:
    while True:
        yield from draw_many(512).tolist()


def _place_markers(style: Style, long: list[list[Dash]], label: bool, uniform: Iterator[float]) -> np.ndarray | None:
    ends = [(contour[0][:2], contour[-1][2:]) for contour in long]
    markers = ends[0] if label else [pair[int(2 * next(uniform))] for pair in ends]
    return np.array(markers) if math.dist(*markers) >= style.marker_distance else None


def _grow_all(
    style: Style, lengths: list[int], board: _Board, taken: int, uniform: Iterator[float], normal: Iterator[float]
) -> tuple[int, list[list[Dash]] | None]:
    """What is taken then, and the contours; ``None`` if one of them found no place."""
    contours = []
    for length in lengths:
        tries = (_grow(style, length, board, taken, uniform, normal) for _ in range(STARTS))
        contour = next(filter(None, tries), None)
        if contour is None:
            return taken, None
        for dash in contour:
            taken = board.take(taken, dash)
        contours.append(contour)
    return taken, contours


def _grow(
    style: Style, length: int, board: _Board, taken: int, uniform: Iterator[float], normal: Iterator[float]
) -> list[Dash] | None:
    """A chain clear of what is taken and of itself, from a random place; steps back from dead ends a few times."""
    low, high = style.padding + style.marker_radius, style.size - style.padding - style.marker_radius
    row, column = (low + (high - low) * next(uniform) for _ in range(2))
    chain: list[Dash] = []
    course = [(2 * math.pi * next(uniform), taken)]  # direction, and what is taken, before each dash
    for _ in range(3 * length):
        if chain:
            row, column = chain[-1][2:]
        before, taken = course[-1]
        for attempt in range(TRIES):
            turn = TURN * style.continuity * next(normal) * (1 + attempt / 4)  # sharper as the way gets narrower
            direction = before + max(-LARGEST_TURN, min(LARGEST_TURN, turn))
            down, right = math.sin(direction), math.cos(direction)
            start_row, start_column = row + style.gap * down, column + style.gap * right
            dash = (start_row, start_column, start_row + style.dash * down, start_column + style.dash * right)
            if low <= min(dash) and max(dash) <= high and board.is_free(taken, dash):
                # the dash before is taken only now: this one may come closer to it than to any other
                course.append((direction, board.take(taken, chain[-1]) if chain else taken))
                chain.append(dash)
                break
        else:
            del chain[-2:], course[max(1, len(course) - 2) :]
            if not chain:
                return None
        if len(chain) == length:
            return chain
    return None


def render(dashes: np.ndarray, markers: np.ndarray, style: Style) -> np.ndarray:
    """Grey levels (S, S): dashes (P, 2, 2) at ``contrast``, dots (2, 2) at full brightness, edges one pixel soft."""
    light = np.maximum(
        style.contrast * _light(dashes, style.thickness / 2, style.size),
        _light(np.stack([markers, markers], axis=1), style.marker_radius, style.size),  # a dot is a dash without length
    )
    return np.round(255 * light).astype(np.uint8)


def dot_distance(image: np.ndarray, contrast: float) -> float:
    """Pixels between the centres of the two dots of an image (S, S) uint8, told by their brightness; 0 if unclear."""
    dots, count = ndimage.label(image > 255 * (1 + contrast) / 2)
    if count != 2:
        return 0.0
    return math.dist(*ndimage.center_of_mass(image, dots, (1, 2)))


def _light(lines: np.ndarray, radius: float, size: int) -> np.ndarray:
    """(S, S) from 0 to 1: what is within ``radius`` of one of ``lines`` (P, 2, 2)."""
    start, along = lines[:, 0], lines[:, 1] - lines[:, 0]
    reach = radius + 1
    corner = np.floor(lines.min(1) - reach).astype(int)
    width = int(np.ceil(np.abs(along).max() + 2 * reach)) + 1  # of a window that holds any of the lines
    offset = corner + 0.5 - start
    rows = (np.arange(width) + offset[:, :1])[:, :, None]
    columns = (np.arange(width) + offset[:, 1:])[:, None, :]
    down, right = along[:, :1, None], along[:, 1:, None]
    nearest = np.clip((rows * down + columns * right) / np.maximum(down**2 + right**2, 1e-12), 0, 1)
    distance = np.hypot(rows - nearest * down, columns - nearest * right)
    light = np.clip(radius + 0.5 - distance, 0, 1) / min(1, radius + 0.5)
    canvas = np.zeros((size + 2 * width, size + 2 * width))  # with a border, so that no window is cut
    for (top, left), window in zip((corner + width).tolist(), light, strict=True):
        place = canvas[top : top + width, left : left + width]
        np.maximum(place, window, out=place)
    return canvas[width : width + size, width : width + size]
