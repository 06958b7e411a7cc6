"""Reads text from page images with Tesseract, whose models stay in memory."""
import os
import stat
import sys
import threading
import time
from typing import Literal

import tesserocr
from PIL import Image, ImageOps, UnidentifiedImageError
from tesserocr import PSM, RIL

from workerd import InvalidParams, Worker, WorkerError

LANGUAGES = sys.argv[1:] or ["eng"]
LAYOUTS = {
    "page": PSM.AUTO,           # find columns, blocks and lines
    "column": PSM.SINGLE_COLUMN,
    "block": PSM.SINGLE_BLOCK,
    "line": PSM.SINGLE_LINE,
    "word": PSM.SINGLE_WORD,
    "sparse": PSM.SPARSE_TEXT,  # text wherever it stands, in no order: drawings, photos
}

worker = Worker()


class Reader:
    """One Tesseract engine a language, made when the language is first asked for and kept."""

    def __init__(self, tessdata):
        self.tessdata = tessdata
        self.engines = {}
        self.lock = threading.Lock()  # an engine reads one page at a time

    def languages(self):
        return sorted(tesserocr.get_languages(self.tessdata)[1])

    def engine(self, lang):
        if lang not in self.engines:
            known = self.languages()
            # Tesseract itself passes over an unknown part of "eng+xyz" in silence.
            unknown = [part for part in lang.split("+") if part not in known]
            if unknown:
                raise InvalidParams("lang: no language %s in %s; available: %s"
                                    % (", ".join(map(repr, unknown)), self.tessdata, ", ".join(known) or "none"))
            self.engines[lang] = tesserocr.PyTessBaseAPI(path=self.tessdata, lang=lang)
        return self.engines[lang]


@worker.load
def load(ctx):
    reader = Reader(str(ctx.weights or tesserocr.get_languages()[0]))
    for n, lang in enumerate(LANGUAGES):
        ctx.progress(n / len(LANGUAGES), "language %s" % lang)
        reader.engine(lang)
    return reader


@worker.method
def recognize(reader, ctx, image: str, lang: str = LANGUAGES[0], layout: Literal[tuple(LAYOUTS)] = "page",
              page: int = 1, dpi: int = 0):
    """Read the text of a page image, given by its path."""
    if dpi and not 70 <= dpi <= 2400:
        raise InvalidParams("dpi: want 70 to 2400, or 0 for what the file says, got %d" % dpi)
    ctx.progress(0.0, "decoding")
    picture, pages, own_dpi = open_page(image, page)
    with reader.lock:
        ctx.check_cancelled()
        ctx.progress(0.1, "reading")
        engine = reader.engine(lang)
        try:
            read(engine, picture, LAYOUTS[layout], dpi or own_dpi, ctx.deadline)
            ctx.check_cancelled()
            words = list(engine_words(engine))
            text = engine.GetUTF8Text().strip() if words else ""
        finally:
            engine.Clear()
            engine.ClearAdaptiveClassifier()  # or a page's text would depend on the pages read before it
    return {
        "text": text,
        "mean_confidence": round(sum(w["confidence"] for w in words) / len(words), 1) if words else 0.0,
        "words": words,
        "width": picture.width,
        "height": picture.height,
        "pages": pages,
    }


@worker.method
def languages(reader, ctx):
    """List the languages that `recognize` can read, and those that are in memory."""
    return {"available": reader.languages(), "loaded": sorted(reader.engines)}


def open_page(path, page):
    """Decode one page of an image file to grey or RGB, upright. Return it, the number of pages, and its resolution."""
    full = os.path.abspath(path)
    try:
        if not stat.S_ISREG(os.stat(full).st_mode):  # opening a pipe would wait for ever
            raise InvalidParams("image: not a regular file: %s" % full)
        with Image.open(full) as file:
            pages = getattr(file, "n_frames", 1)
            if not 1 <= page <= pages:
                raise InvalidParams("page: %s has pages 1 to %d, got %d" % (full, pages, page))
            file.seek(page - 1)
            file.load()
            dpi = resolution(file)
            return plain(ImageOps.exif_transpose(file)), pages, dpi
    except (InvalidParams, MemoryError):
        raise
    except FileNotFoundError:
        raise InvalidParams("image: no such file: %s" % full)
    except UnidentifiedImageError:
        raise InvalidParams("image: not in a known image format: %s" % full)
    except Exception as e:  # of whatever type: Pillow's decoders raise anything on a damaged file
        if isinstance(e, OSError) and e.errno is not None:
            raise InvalidParams("image: cannot read %s: %s" % (full, os.strerror(e.errno)))
        raise InvalidParams("image: cannot decode %s: %s" % (full, e))


def plain(picture):
    """Convert to the two modes that Tesseract takes. What is transparent becomes white paper."""
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    if picture.mode.startswith("I;16"):
        picture = picture.convert("I")
    if picture.mode == "I":
        return picture.point(lambda v: v / 256).convert("L")
    return picture if picture.mode in ("L", "RGB") else picture.convert("L" if picture.mode == "1" else "RGB")


def resolution(picture):
    """The resolution that the file names, 0 where it is missing or cannot be a scan's: Tesseract then estimates it."""
    try:
        dpi = round(float(picture.info.get("dpi", (0, 0))[1]))
    except (TypeError, ValueError, ArithmeticError, IndexError):
        return 0
    return dpi if 100 <= dpi <= 2400 else 0  # 72 and 96 are what programs write that do not know it


def read(engine, picture, layout, dpi, deadline):
    channels = len(picture.getbands())
    engine.SetPageSegMode(layout)
    engine.SetImageBytes(picture.tobytes(), picture.width, picture.height, channels, channels * picture.width)
    if dpi:
        engine.SetSourceResolution(dpi)
    limit = 0 if deadline is None else int(max(1, min(deadline - time.monotonic(), 1e6) * 1000))  # milliseconds; 0: none
    try:
        if engine.Recognize(limit):
            return
    except RuntimeError:
        pass
    if deadline is not None and time.monotonic() >= deadline:
        raise WorkerError("deadline_exceeded", True, message="the page was not read in time")
    raise InvalidParams("image: Tesseract cannot read a page of %d x %d pixels (at most 32767 each way)" % picture.size)


def engine_words(engine):
    for item in tesserocr.iterate_level(engine.GetIterator(), RIL.WORD):
        if item.Empty(RIL.WORD):  # a picture, or a page with no text at all
            continue
        text = item.GetUTF8Text(RIL.WORD).strip()
        if text:
            yield {
                "text": text,
                "confidence": round(item.Confidence(RIL.WORD), 1),
                "box": list(item.BoundingBox(RIL.WORD)),
            }


if __name__ == "__main__":
    worker.run()
