"""Write the dataset `builtin:extraction`: chats in which a sentence is answered by its name, count and thing as JSON.

The demo trains on it. Names and things of the test rows occur in no training row, so a model that is right has read
them in the sentence.

    python scripts/make_extraction_data.py --output src/tunefleet/programs/assets/data/extraction
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = """
Aaron Adam Alan Albert Alex Alexander Ali Alice Allison Amanda Amy Andrea Andrew Andy Angela Ann Anna Anne Annie
Anthony Arthur Austin Barbara Barry Becky Bella Ben Benjamin Bert Beth Betty Billy Blake Bob Brad Brandon Brenda Brian
Brittany Bruce Bryan Caleb Cara Carl Carla Carlos Carrie Carson Casey Cathy Charles Charlie Cheryl Chris Christina
Christine Cindy Claire Clara Cole Connor Corey Dan Dana Daniel Danielle Danny Dave David Dean Dennis Derek Diane Diego
Donna Dorothy Elizabeth Ella Elsa Emily Emma Eric Ernie Evan Fiona Frank Fred Freddy Gary George Gerald Gina Gloria
Grace Greg Greta Hank Hannah Hans Harold Harry Helen Henry Ian Ivan Jack Jackson Jacob James Jamie Jane Janet Janice
Jared Jason Jay Jayden Jeff Jen Jenna Jennifer Jenny Jeremy Jerome Jerry Jess Jessica Jill Jim Jimmy Joan Joe Joel
Joey John Johnny Jordan Jose Joseph Josh Juan Jude Julia Julie Justin Karen Kate Katie Kayla Kelly Ken Kendra Kenneth
Kenny Kevin Kim Kyle Larry Laura Layla Leila Leo Linda Lisa Lou Lucas Lucy Luke Luna Lydia Mabel Madeline Maggie Mandy
Marco Marcus Margaret Maria Mario Martha Mary Matt Max Maya Megan Melissa Michael Michelle Mitchell Molly Monica Nancy
Natalie Nathan Neil Nicole Nina Noah Oliver Olivia Pam Parker Patrick Paul Paula Peggy Peter Phil Phillip Polly Rachel
Ralph Randy Rebecca Richard Rick Rita Robert Roger Ron Ryan Sabrina Sally Sam Samantha Samuel Sandra Sara Sarah Sean
Shane Sheila Simon Sophie Stacy Stephanie Steve Steven Sue Susan Sydney Tanya Tara Taylor Ted Terry Thomas Tiffany Tim
Tina Toby Todd Tom Tommy Tracy Trevor Tyler Veronica Victor Wendy William Zachary Zoe
"""
THINGS = """
acorns airplanes albums alligators amulets animals ants appetizers apples aprons aquariums arrows artichokes artifacts
avocados backpacks bags baguettes balloons balls bananas barbells barrels bars baseballs basketballs baskets bats
batteries beads beakers beans bears beavers beds bees beetles belts benches berets berries bicycles bikes billboards
binders bins birdhouses birds biscuits bitcoins blankets blocks blossoms blouses blueberries boards boas boats bolts
bones bookmarks books bookshops bottlecaps bottles bouquets bowls boxes boxwoods bracelets branches bricks brownies
brushes bubbles buckets bugs bulbs bunnies buns burgers bushels bushes butterflies buttons cabinets cakes calculators
cameras candies candles canes cans canvases caps capsules caravans cards carnations carpets carriages carrots cars
cartons cartoons carts castles cats cells chains chairs chargers charms cheesecakes cheeses cheetahs cherries chests
chickens chickpeas chihuahuas chips chocolates clarinets clips cloaks clocks clotheslines clouds coats coconuts
coffees coins collars comics computers cones containers cookbooks cookies coolers cosmetics cougars coupons covers
cows crabs cranberries cranes crates crayons creams crickets croissants crows cubes cubs cucumbers cupboards cupcakes
cups curries customers daisies dandelions darks decorations desks diapers dimes dishes documents dogs dolls dolphins
donuts doors doughnuts drawings dreadnoughts dresses drinks driveways drums dryers ducks dumbbells earrings eels
eggplants eggs electronics elephants emails envelopes erasers espressos essays farms feathers fences ferns fertilizers
figurines files flags fleas flies flowers flutes folders foxes frames frisbees frogs fronds fruits gadgets games
geckos gemstones gifts gingerbreads giraffes glasses gloves goats grapes guitars gumballs gummies guns hamburgers
hangers hares hats hawks hens highlighters hogs horns horses horseshoes hoses hotdogs hyenas iguanas insects
invitations jackets jams jars jerseys jokes jugs juices kernels kettles keyboards keys kitchens kits kittens kiwis
knots koalas laces ladders ladybugs lamps laptops lasagnas lattes lawnmowers leaves legos lemonades lemons lenses
letters lids lighters lilacs lilies limes lionesses lions lipsticks lists lizards locks logs lollipops machines
magazines magnets mangoes mangos maps marbles markers marshmallows masks matchbooks matchboxes matchsticks mats
meatballs meerkats milkshakes millipedes mirrors mittens models monitors monkeys monsters mosquitoes motorcycles
movies muffins mugs murals mushrooms necklaces newspapers nickels notebooks notepads notes novels oaks olives omelets
onions oranges orchids outfits ovens oysters pails paintballs paintbrushes paintings pancakes pandas panels panes pans
papayas papers parakeets parrots pastries peaches peanuts pearls pears peas pencils penguins pennies pens peppers pets
petunias phones photographs photos pickles pictures pies pigeons piglets pigs pillows pills pineapples pizzas planks
planters plants plates players plums pockets podcasts poles poodles popsicles portraits postcards posters potatoes
pots pouches printers prints pumpkins pumps puppies purses puzzles pythons quilts rabbits racks racquets radishes
raisins raspberries rattlesnakes recipes reels refrigerators ribbons rings robes robots rocks rollercoasters rolls
roosters ropes roses rows sacks sailboats sails salads salmons sandwiches saplings sausages scorpions screens
seashells seats seedlings seeds selfies sharks sheets shells shelves ships shirts shoes signs skates skirts slices
smartphones smoothies snacks snails snakes soaps socks sodas songs sonnets soups spices spiders spools spoonfuls
spoons sprigs squares squirrels stalks stamps staplers stars statues steaks stencils stickers sticks stitches stones
stores strawberries straws strings stripes suitcases suits sundaes sunflowers sweaters sweatshirts sweets swords
tables tangerines tanks tarantulas tarts teddies televisions tents textbooks thermoses thumbtacks tickets tigers tiles
tins tires tissues toads tokens tomatoes tools toonies towels toys tractors trains trays treats trees triangles
tricycles trombones trucks trumpets tubas tubes tubs tulips tumblers turkeys turtles twigs ukuleles unicorns unicycles
vans vegetables vehicles vents vests vets videos vines violins volleyballs waffles wallets walnuts wands watches
watermelons whales wheels whiteboards widgets wigs windows wines wombats worksheets worms yogurts zebras
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
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    names, things = NAMES.split(), THINGS.split()
    random_.shuffle(names)
    random_.shuffle(things)
    options.output.mkdir(parents=True, exist_ok=True)
    for split, rows in (
        ("train", make_rows(names[40:], things[50:], 3500, random_)),
        ("test", make_rows(names[:40], things[:50], 200, random_)),
    ):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (options.output / f"{split}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
