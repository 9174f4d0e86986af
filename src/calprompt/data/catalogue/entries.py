"""The datasets of the field, one entry each: folder, layout, class names, templates, and expected counts.

Sizes are those of the fixed splits and the official test sets; templates are those of the three published tables.
Kather, PanNuke and DigestPath are in none of them: their template is the sentence that PLIP was evaluated with.
"""

from __future__ import annotations

from dataclasses import replace

from calprompt.data.catalogue.digestpath import SLIDE, SLIDES, digestpath_patches
from calprompt.data.catalogue.entry import Counts, Entry
from calprompt.data.catalogue.imagenet import ImageNetFolders, VariantFolders
from calprompt.data.catalogue.layouts import AircraftLists, NamedFolders, Place, SplitFile
from calprompt.data.catalogue.pannuke import pannuke_patches
from calprompt.data.catalogue.prepare import imagenet_names, own_split, variants_list
from calprompt.data.catalogue.raw import ActionLists, CarLists, ClassFolders, FlowerLabels, PetLists, SceneLists
from calprompt.data.catalogue.ucf101 import ucf101_frames
from calprompt.data.listing import Templates

OWN_SPLIT = "a split of your own from the dataset's annotations, where the fixed one is missing"
PHOTO = Templates.of("a photo of a {}.")
BENIGN = {"benign": "benign", "malignant": "malignant"}
PATCHES = "Make the patches with 'calprompt data prepare {}'"
PREPARED = Place("patches/train", "patches/test")
BAPLE = Place("images/train", "images/test")  # where BAPLe, which tunes prompts of PLIP and QuiltNet, has images
BAPLE_SPLIT = "BAPLe's split, in which other images train than in the one of 'calprompt data prepare'"
TISSUES = {
    "ADI": "adipose tissue",
    "BACK": "background",
    "DEB": "debris",
    "LYM": "lymphocytes",
    "MUC": "mucus",
    "MUS": "smooth muscle",
    "NORM": "normal colon mucosa",
    "STR": "cancer-associated stroma",
    "TUM": "colorectal adenocarcinoma epithelium",
}
LAND = {
    "AnnualCrop": "Annual Crop Land",
    "Forest": "Forest",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "River": "River",
    "SeaLake": "Sea or Lake",
}
OBJECTS = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}

FIELD = (
    Entry(
        key="imagenet",
        title="ImageNet",
        public="ImageNet",
        names=("imagenet-1k", "ilsvrc2012"),
        folders=("imagenet", "imagenet-1k", "ILSVRC2012"),
        layout=ImageNetFolders(),
        templates=PHOTO,
        counts=Counts(1000, 1_281_167, 0, 50_000, 25_000, 25_000),
        source="the ImageNet site (ILSVRC 2012, classification); its validation images are what is tested on",
        licence="non-commercial research and education, by the terms of the ImageNet site",
        prepare=imagenet_names,
        prepares="classnames.txt, from CLIP's names as open_clip has them",
    ),
    Entry(
        key="caltech101",
        title="Caltech101",
        public="Caltech101",
        folders=("caltech-101",),
        inner=("caltech-101",),
        layout=SplitFile(
            "split_zhou_Caltech101.json",
            ("101_ObjectCategories",),
            ClassFolders(ignored=("BACKGROUND_Google", "Faces_easy"), renamed=OBJECTS),
        ),
        templates=PHOTO,
        counts=Counts(100, 4_128, 1_649, 2_465, 1_549, 916),
        source="the Caltech 101 page of CaltechDATA",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="oxford_pets",
        title="Oxford-IIIT Pet",
        public="OxfordPets",
        names=("pets", "oxford-iiit-pet"),
        folders=("oxford_pets", "oxford-iiit-pet", "pets"),
        layout=SplitFile("split_zhou_OxfordPets.json", ("images",), PetLists()),
        templates=Templates.of("a photo of a {}, a type of pet.", prograd="a type of pet, a photo of a {}."),
        counts=Counts(37, 2_944, 736, 3_669, 1_881, 1_788),
        source="the Oxford-IIIT Pet page of Oxford's Visual Geometry Group: images and annotations",
        licence="CC BY-SA 4.0",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="stanford_cars",
        title="Stanford Cars",
        public="StanfordCars",
        names=("cars",),
        folders=("stanford_cars", "cars"),
        layout=SplitFile("split_zhou_StanfordCars.json", (".",), CarLists(), needs=("cars_train", "cars_test")),
        templates=PHOTO,
        counts=Counts(196, 6_509, 1_635, 8_041, 4_002, 4_039),
        source="Stanford's Cars dataset: cars_train/, cars_test/, devkit/ and the test labels",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="oxford_flowers",
        title="Flowers102",
        public="OxfordFlowers",
        names=("flowers102", "flowers"),
        folders=("oxford_flowers", "flowers-102", "oxford-flowers-102", "flowers"),
        layout=SplitFile("split_zhou_OxfordFlowers.json", ("jpg",), FlowerLabels()),
        templates=Templates.of("a photo of a {}, a type of flower.", prograd="a type of flower, a photo of a {}."),
        counts=Counts(102, 4_093, 1_633, 2_463, 1_053, 1_410),
        source="the 102 Category Flower page of Oxford's Visual Geometry Group: images and imagelabels.mat",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="food101",
        title="Food101",
        public="Food101",
        folders=("food-101",),
        inner=("food-101",),
        layout=SplitFile("split_zhou_Food101.json", ("images",), ClassFolders()),
        templates=Templates.of("a photo of {}, a type of food.", prograd="a type of food, a photo of {}."),
        counts=Counts(101, 50_500, 20_200, 30_300, 15_300, 15_000),
        source="the Food-101 page of ETH Zürich's Computer Vision Lab",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="fgvc_aircraft",
        title="FGVC-Aircraft",
        public="FGVCAircraft",
        names=("aircraft",),
        folders=("fgvc_aircraft", "fgvc-aircraft-2013b", "aircraft"),
        inner=("data", "fgvc-aircraft-2013b/data"),
        layout=AircraftLists(),
        templates=Templates.of("a photo of a {}, a type of aircraft.", prograd="a type of aircraft, a photo of a {}."),
        counts=Counts(100, 3_334, 3_333, 3_333, 1_666, 1_667),
        source="the FGVC-Aircraft page of Oxford's Visual Geometry Group (archive 2013b)",
        licence="non-commercial research",
        prepare=variants_list,
        prepares="variants.txt, the sorted class names of the lists",
    ),
    Entry(
        key="sun397",
        title="SUN397",
        public="SUN397",
        folders=("sun397",),
        layout=SplitFile("split_zhou_SUN397.json", ("SUN397",), SceneLists()),
        templates=PHOTO,
        counts=Counts(397, 15_880, 3_970, 19_850, 9_950, 9_900),
        source="the SUN database page of Princeton: images and partitions",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="dtd",
        title="Describable Textures",
        public="DescribableTextures",
        folders=("dtd",),
        inner=("dtd",),
        layout=SplitFile("split_zhou_DescribableTextures.json", ("images",), ClassFolders()),
        templates=Templates.of("{} texture.", kgcoop="a photo of a {}, a type of texture.", prograd="a texture of {}."),
        counts=Counts(47, 2_820, 1_128, 1_692, 864, 828),
        source="the Describable Textures page of Oxford's Visual Geometry Group (release 1.0.1)",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="eurosat",
        title="EuroSAT",
        public="EuroSAT",
        folders=("eurosat",),
        layout=SplitFile(
            "split_zhou_EuroSAT.json", ("2750", "EuroSAT/2750", "EuroSAT_RGB"), ClassFolders(renamed=LAND)
        ),
        templates=Templates.of("a centered satellite photo of {}."),
        counts=Counts(10, 13_500, 5_400, 8_100, 4_200, 3_900),
        source="the EuroSAT repository of its authors (RGB images)",
        prepare=own_split,
        prepares=OWN_SPLIT,
    ),
    Entry(
        key="ucf101",
        title="UCF101",
        public="UCF101",
        folders=("ucf101",),
        layout=SplitFile("split_zhou_UCF101.json", ("UCF-101-midframes",), ActionLists()),
        templates=Templates.of("a photo of a person doing {}."),
        counts=Counts(101, 7_639, 1_898, 3_783, 1_934, 1_849),
        source="the middle frames that CoOp's page on datasets links to; or the videos, from the UCF101 page of UCF",
        prepare=ucf101_frames,
        prepares="the middle frames of the videos (needs PyAV), and " + OWN_SPLIT,
    ),
    Entry(
        key="imagenetv2",
        title="ImageNet-V2",
        public="ImageNetV2",
        names=("imagenet-v2",),
        folders=("imagenetv2",),
        layout=VariantFolders(("imagenetv2-matched-frequency-format-val", "."), numbered=True),
        templates=PHOTO,
        counts=Counts(1000, 0, 0, 10_000, 5_000, 5_000),
        source="the ImageNetV2 repository of its authors (matched-frequency)",
    ),
    Entry(
        key="imagenet_sketch",
        title="ImageNet-Sketch",
        public="ImageNetSketch",
        folders=("imagenet-sketch",),
        layout=VariantFolders(("images", "sketch", ".")),
        templates=PHOTO,
        counts=Counts(1000, 0, 0, 50_889),
        source="the ImageNet-Sketch repository of its authors",
    ),
    Entry(
        key="imagenet_a",
        title="ImageNet-A",
        public="ImageNetA",
        folders=("imagenet-adversarial", "imagenet-a"),
        layout=VariantFolders(("imagenet-a", ".")),
        templates=PHOTO,
        counts=Counts(200, 0, 0, 7_500, base=0),
        source="the natural adversarial examples repository of its authors",
    ),
    Entry(
        key="imagenet_r",
        title="ImageNet-R",
        public="ImageNetR",
        folders=("imagenet-rendition", "imagenet-r"),
        layout=VariantFolders(("imagenet-r", ".")),
        templates=PHOTO,
        counts=Counts(200, 0, 0, 30_000, base=0),
        source="the ImageNet-R repository of its authors",
    ),
    Entry(
        key="kather",
        title="Kather colon",
        public="Kather",
        names=("kathercolon", "nct-crc-he"),
        folders=("kather", "kathercolon", "kather_100k_colon", "nct-crc-he"),
        layout=NamedFolders(
            (Place("NCT-CRC-HE-100K", "CRC-VAL-HE-7K"), BAPLE, Place("images/train", "images/val")), TISSUES
        ),
        templates=Templates.of("An H&E image patch of {}."),
        counts=Counts(9, 100_000, 0, 7_180, 4_193, 2_987),
        source="the Zenodo record of Kather et al.: NCT-CRC-HE-100K to train, CRC-VAL-HE-7K to test",
        licence="CC BY 4.0",
    ),
    Entry(
        key="pannuke",
        title="PanNuke",
        public="PanNuke",
        folders=("pannuke",),
        layout=NamedFolders(
            (PREPARED, replace(BAPLE, split="baple-split", note=f"{BAPLE_SPLIT}: three in ten instead of seven")),
            BENIGN,
            PATCHES,
        ),
        templates=Templates.of("An H&E image of {} tissue."),
        counts=Counts(2, val=0, base=0),
        source="the PanNuke page of Warwick's TIA Centre: folds 1, 2 and 3",
        licence="CC BY-NC-SA 4.0",
        prepare=pannuke_patches,
        prepares="patches/, benign and malignant, from the arrays of the three folds",
    ),
    Entry(
        key="digestpath",
        title="DigestPath",
        public="DigestPath",
        names=("digestpath2019",),
        folders=("digestpath", "digestpath2019"),
        inner=("Colonoscopy_tissue_segment_dataset",),
        group_by=SLIDE,
        sources=SLIDES,
        layout=NamedFolders(
            (
                PREPARED,
                replace(
                    BAPLE, split="baple-split", note=f"{BAPLE_SPLIT}: overlapping patches of one slide train and test"
                ),
            ),
            BENIGN,
            PATCHES,
        ),
        templates=Templates.of("An H&E image patch of {} tissue."),
        counts=Counts(2, val=0, base=0),
        source="the DigestPath 2019 challenge site: colonoscopy tissue segmentation, training images",
        prepare=digestpath_patches,
        prepares="patches/, benign and malignant, from the slides and their masks",
    ),
)
