"""Image augmentations for tf.data: seeded, stateless, vectorised over the batch.

    augment = compose(random_crop(4), flip_left_right(), cutout(16))
    images = augment(images, seed=seeds)
    images, labels = compose(augment, mixup(0.2))(images, labels, seed=seeds)
    dataset = dataset.apply(augment.seeded(7))

Every name here makes an `Augmentation`, and every augmentation is called the same way, eagerly
and in `Dataset.map`; it returns what it was given, images or (images, labels):

- `images`: uint8 in 0..255 or float32 in 0..1, one image [height, width, 3] or a batch
  [batch, height, width, 3]. Dtype, range and shape come out as they went in, static shapes too.
  Two exceptions say so: `random_resized_crop(size)` gives that size, `normalise` float32 of mean
  0 and standard deviation 1.
- `labels`: anything; passed through untouched, except by `mixup` and `cutmix`, which take a batch
  and its float one-hot labels [batch, classes] and mix both (`Augmentation.mixes_labels` tells).
- `seed`: int32 or int64, [2] for one image, [batch, 2] for a batch, any numbers: (seed, position)
  pairs that differ by one are as good as random ones. [2] for a batch gives each example a seed
  of its own, by its place. The random draws of an example follow from its own seed alone: not
  from its place in the batch, the threads, or any state that a checkpoint would have to keep.
  Only `mixup` and `cutmix` depend on the rest of the batch, as they must.
"""
