"""Draws the page images of this folder, with the text that each carries beside it (NAME.txt).

    sudo apt-get install python3-pil fonts-dejavu-core
    /usr/bin/python3 make_pages.py

The random parts (noise, stains) have fixed seeds: the same Pillow draws the same pages.
"""
import os
import random

from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

HERE = os.path.dirname(os.path.abspath(__file__))
FONTS = "/usr/share/fonts/truetype/dejavu/DejaVu%s.ttf"

SMOKE = ["The model stays in memory.", "Pages are read as they come,", "one after the other, all day."]

LETTER = """Harbour Street 14
17 March 2026

Dear Dr. Albright,

thank you for the samples that reached us on Monday. All twelve
vials were intact, and the cold chain was never broken: the logger
shows 4.2 degrees at most.

We measured each sample three times. The second series differs
from the first by less than two percent, which is within the error
of the instrument. Only vial number 7 stands out; we would like to
repeat it with fresh buffer before we report a value.

Please let us know whether you still have material of that batch.
The complete tables will follow by the end of the month.

With kind regards,
Helen Fairweather""".split("\n")

LEFT = """Paper has been made from
linen, cotton and wood. Each
of these fibres ages in its
own way. Linen rags gave
sheets that are still white
after four hundred years.
Wood pulp, cheap and acid,
turns yellow within decades.""".split("\n")

RIGHT = """Printers learned early to
choose the ink to suit the
sheet. Lamp black in boiled
oil stays on the surface and
keeps its edge. That is why
old books are often easier
to read by machine than the
newspapers of our parents.""".split("\n")

INVOICE = """Invoice 20417                         Date 2026-02-28

Item               Quantity      Price       Total
Buffer tablets           12       4.50       54.00
Pipette tips           1000       0.08       80.00
Gloves, size M            6      11.25       67.50
Glass slides            250       0.32       80.00

Sum                                         281.50
Tax 20 %                                     56.30
To be paid                                  337.80""".split("\n")

PHOTO = """NOTICE TO ALL VISITORS

The reading room is open from
nine to six, Monday to Friday.
Please leave bags and coats in
the lockers near the entrance.
Pencils only: no ink is allowed
at the tables. Photographs may
be taken without flash.""".split("\n")

FAX = ["""Page 1 of 2

To: Night shift, building C
From: Control room

The pump in cellar two was stopped
at 03:15 because of a leak. It must
not be started before the seal has
been replaced. The spare pump runs
at half power and is being watched.""".split("\n"),
       """Page 2 of 2

Parts needed for the repair:
one shaft seal, forty millimetres
two gaskets for the outer flange
half a litre of silicone grease

Please confirm by telephone.""".split("\n")]


def write(draw, lines, x, y, size, face="Serif", leading=1.5):
    font = ImageFont.truetype(FONTS % face, size)
    for line in lines:
        draw.text((x, y), line, font=font, fill=0)
        y += int(size * leading)


def sheet(width, height, lines, x, y, size, face="Serif"):
    page = Image.new("L", (width, height), 255)
    write(ImageDraw.Draw(page), lines, x, y, size, face)
    return page


def skewed(page, degrees):
    return page.rotate(degrees, resample=Image.BICUBIC, fillcolor=255)


def speckled(page, share, seed):
    """Black and white, with dust: single dark and light dots on so great a share of the pixels."""
    page = page.point(lambda v: 255 if v > 140 else 0)
    rng = random.Random(seed)
    dots = page.load()
    for _ in range(int(page.width * page.height * share)):
        dots[rng.randrange(page.width), rng.randrange(page.height)] = rng.choice((0, 255))
    return page.convert("1")


def photographed(page, seed):
    """Soft, unevenly lit, grainy."""
    rng = random.Random(seed)
    page = page.filter(ImageFilter.GaussianBlur(0.8))
    light = Image.linear_gradient("L").rotate(90).resize(page.size).point(lambda v: 130 + v * 100 // 255)
    page = ImageChops.multiply(page, light)
    grain = Image.new("L", page.size)
    grain.putdata([rng.randrange(14) for _ in range(page.width * page.height)])
    return ImageChops.add(page, grain)


def save(page, name, texts, **options):
    path = os.path.join(HERE, name)
    page.save(path, **options)
    stem = os.path.splitext(path)[0]
    for n, lines in enumerate(texts, 1):
        with open(stem + (".%d" % n if len(texts) > 1 else "") + ".txt", "w") as f:
            f.write("\n".join(lines) + "\n")


def levels(page):
    """Sixteen shades: half the bytes, and no difference to the eye or to Tesseract."""
    return page.quantize(16)


def main():
    page = sheet(900, 300, SMOKE, 60, 50, 40)
    page.quantize(16).save(os.path.join(HERE, "page.png"), dpi=(200, 200), optimize=True)

    save(levels(sheet(1400, 1300, LETTER, 110, 100, 32)), "pages/letter.png", [LETTER], dpi=(200, 200), optimize=True)

    columns = Image.new("L", (1400, 760), 255)
    draw = ImageDraw.Draw(columns)
    write(draw, ["On paper and ink"], 470, 70, 52)
    write(draw, LEFT, 110, 210, 32)
    write(draw, RIGHT, 760, 210, 32)
    save(levels(columns), "pages/columns.png", [["On paper and ink"] + LEFT + RIGHT], dpi=(200, 200), optimize=True)

    save(levels(sheet(1400, 820, INVOICE, 110, 100, 36, "SansMono")), "pages/invoice.png", [INVOICE], optimize=True)

    scan = speckled(skewed(sheet(1400, 1300, LETTER, 110, 100, 32, "Sans"), 1.5), 0.0005, 1)
    save(scan, "pages/scan.png", [LETTER], dpi=(200, 200), optimize=True)

    photo = photographed(sheet(900, 640, PHOTO, 70, 60, 40, "Sans"), 2)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees to see the page
    save(photo.transpose(Image.ROTATE_90), "pages/photo.jpg", [PHOTO], quality=45, exif=exif)

    fax = [speckled(skewed(sheet(1200, 800, lines, 120, 90, 36, "Sans"), angle), 0.0005, seed)
           for lines, angle, seed in ((FAX[0], -0.8, 3), (FAX[1], 0.6, 4))]
    save(fax[0], "pages/fax.tif", FAX, save_all=True, append_images=fax[1:], compression="group4", dpi=(200, 200))


if __name__ == "__main__":
    main()
