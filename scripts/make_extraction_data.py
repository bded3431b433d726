"""Write the dataset `builtin:extraction`: chats in which a sentence is answered by its name, count and thing as JSON.

The demo trains on it. Names and things of the test rows occur in no training row, so a model that is right has read
them in the sentence. Training rows have many more things (words of GSM8K's questions), too many to memorize.

    python scripts/make_extraction_data.py --questions gsm8k_train.jsonl --output FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = """
Aaron Adam Alan Albert Alex Ali Alice Amanda Amy Andrea Andrew Andy Angela Ann Anna Anne Annie Arthur Austin Barry
Becky Bella Ben Bert Beth Betty Billy Blake Bob Brad Brenda Brian Bruce Bryan Caleb Cara Carl Carla Carlos Carrie
Carson Casey Cathy Cheryl Chris Cindy Claire Clara Cole Connor Corey Dan Dana Daniel Danny Dave David Dean Dennis
Derek Diane Diego Donna Ella Elsa Emily Emma Eric Ernie Evan Fiona Frank Fred Freddy Gary George Gerald Gina Gloria
Grace Greg Greta Hank Hannah Hans Harold Harry Helen Henry Ian Ivan Jack Jacob James Jamie Jane Janet Janice Jared
Jason Jay Jayden Jeff Jen Jenna Jenny Jeremy Jerome Jerry Jess Jill Jim Jimmy Joan Joe Joel Joey John Johnny Jordan
Jose Joseph Josh Juan Jude Julia Julie Justin Karen Kate Katie Kayla Kelly Ken Kendra Kenny Kevin Kim Kyle Larry Laura
Layla Leila Leo Linda Lisa Lou Lucas Lucy Luke Luna Lydia Mabel Maggie Mandy Marco Marcus Maria Mario Martha Mary Matt
Max Maya Megan Molly Monica Nancy Nathan Neil Nicole Nina Noah Oliver Olivia Pam Parker Paul Paula Peggy Peter Phil
Polly Rachel Ralph Randy Rick Rita Robert Roger Ron Ryan Sally Sam Samuel Sandra Sara Sarah Sean Shane Sheila Simon
Sophie Stacy Steve Steven Sue Susan Sydney Tanya Tara Taylor Ted Terry Thomas Tim Tina Toby Todd Tom Tommy Tracy
Trevor Tyler Victor Wendy Zoe
"""
THINGS = """
acorns albums amulets animals ants apples aprons arrows avocados bags balloons balls bananas barbells barrels bars
baskets bats beads beakers beans bears beavers beds bees beetles belts benches berets berries bicycles bikes binders
bins birds biscuits bitcoins blankets blocks blossoms blouses boards boas boats bolts bones books bottles bouquets
bowls boxes boxwoods branches bricks brownies brushes bubbles buckets bugs bulbs bunnies buns burgers bushels bushes
buttons cabinets cakes cameras candies candles canes cans canvases caps capsules caravans cards carpets carrots cars
cartons cartoons carts castles cats cells chains chairs chargers charms cheeses cheetahs cherries chests chickens
chips clips cloaks clocks clouds coats coconuts coffees coins collars comics cones cookies coolers cougars coupons
covers cows crabs cranes crates crayons creams crickets crows cubes cubs cupcakes cups curries daisies darks desks
diapers dimes dishes dogs dolls dolphins donuts doors drawings dresses drinks drums dryers ducks earrings eels eggs
emails erasers essays farms feathers fences ferns files flags fleas flies flowers flutes folders foxes frames frisbees
frogs fronds fruits gadgets games geckos gifts giraffes glasses gloves goats grapes guitars gumballs gummies guns
hangers hares hats hawks hens hogs horns horses hoses hotdogs hyenas iguanas insects jackets jams jars jerseys jokes
jugs juices kernels kettles keys kitchens kits kittens kiwis knots koalas laces ladders ladybugs lamps laptops
lasagnas lattes leaves legos lemons lenses letters lids lighters lilacs lilies limes lions lists lizards locks logs
machines magnets mangoes mangos maps marbles markers masks mats meerkats mirrors mittens models monitors monkeys
monsters movies muffins mugs murals nickels notepads notes novels oaks olives omelets onions oranges orchids outfits
ovens oysters pails pancakes pandas panels panes pans papayas papers parrots pastries peaches peanuts pearls pears
peas pencils penguins pennies pens peppers pets petunias phones photos pickles pictures pies pigeons piglets pigs
pillows pills pizzas planks planters plants plates players plums pockets podcasts poles poodles posters potatoes pots
pouches printers prints pumpkins pumps puppies purses puzzles pythons quilts rabbits racks racquets radishes raisins
recipes reels ribbons rings robes robots rocks rolls roosters ropes roses rows sacks sails salads salmons saplings
sausages screens seats seeds selfies sharks sheets shells shelves ships shirts shoes signs skates skirts slices snacks
snails snakes soaps socks sodas songs sonnets soups spices spiders spools spoons sprigs squares stalks stamps staplers
stars statues steaks stencils stickers sticks stitches stones stores straws strings stripes suits sundaes sweaters
sweets swords tables tanks tarts teddies tents tickets tigers tiles tins tires tissues toads tokens tomatoes tools
toonies towels toys tractors trains trays treats trees trucks trumpets tubas tubes tubs tulips tumblers turkeys
turtles twigs ukuleles unicorns vans vehicles vents vests vets videos vines violins waffles wallets walnuts wands
watches whales wheels widgets wigs windows wines wombats worms yogurts zebras
"""
SENTENCES = """
{name} buys {count} {thing} at the market.
{name} has {count} {thing} in a box.
In the morning {name} found {count} {thing} near the river.
There are {count} {thing} on the table, and all of them belong to {name}.
{name} sold {count} {thing} to a neighbor last week.
My friend {name} wants to give away {count} {thing}.
For the party, {name} needs {count} {thing}.
Yesterday {name} packed {count} {thing} for the trip.
{count} {thing} were left at school by {name}.
The teacher gave {name} {count} {thing} for the class.
{name} collects {thing} and now owns {count}.
On Monday, {name} ordered {count} {thing} from the store.
Of all the {thing} in the shop, {name} took {count}.
After lunch {name} counted {count} {thing} in the garden.
{name} will bring {count} {thing} tomorrow.
A bag with {count} {thing} was lost by {name}.
""".strip().splitlines()


VERBS = """
 adds allows appears arrests arrives asks becomes begins brings buys calls carries catches charges collects comes
consists consumes contains continues cooks costs covers decides delivers does drinks drives earns eats equals
expects feels fills finds flows follows gets gives goes grows happens has helps hires holds includes increases
interests joins keeps knows leaves lets likes lives loses loves makes meets moves needs offers owns pays picks plans
plays pours produces provides puts raises reaches reads realizes receives remains represents requires returns runs
saves says sees seems sells sends shows sits spends stands starts stops suggests takes tells thinks throws travels
tries turns uses visits walks wants was weighs wins wishes works writes
"""


def plurals(questions: Path) -> list[str]:
    """Return the words of a JSONL file's questions that are a plural of another word there."""
    with questions.open(encoding="utf-8") as lines:
        words = set(re.findall(r"\b[a-z]+\b", " ".join(json.loads(line)["question"] for line in lines)))
    verbs = set(VERBS.split())

    def is_plural(word: str) -> bool:
        singular = {word[:-1], word.removesuffix("es"), word.removesuffix("ies") + "y"} - {word, f"{word}y"}
        return len(word) > 3 and word.endswith("s") and not word.endswith("ss") and bool(singular & words)

    return sorted(word for word in words if is_plural(word) and word not in verbs)


def make_rows(names: Sequence[str], things: Sequence[str], count: int, random_: random.Random) -> list[dict[str, Any]]:
    """Return different sentences with their answers, as chats."""
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        said = {"name": random_.choice(names), "count": random_.randint(2, 99), "thing": random_.choice(things)}
        sentence = random_.choice(SENTENCES).format(**said)
        question = {"role": "user", "content": sentence}
        rows[sentence] = {"messages": [question, {"role": "assistant", "content": json.dumps(said)}]}
    return list(rows.values())


def main() -> None:
    """Write `train.jsonl` and `test.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with a `question` in each row")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    names, things = NAMES.split(), THINGS.split()
    random_.shuffle(names)
    random_.shuffle(things)
    options.output.mkdir(parents=True, exist_ok=True)
    many = sorted({*things[50:], *plurals(options.questions)} - {*things[:50]})
    for split, rows in (
        ("train", make_rows(names[40:], many, 4000, random_)),
        ("test", make_rows(names[:40], things[:50], 200, random_)),
    ):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (options.output / f"{split}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
