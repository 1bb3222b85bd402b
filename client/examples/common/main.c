#include <stddef.h>

#include "train.h"

int main(int argc, char **argv)
{
    return train_main(argc, argv, NULL);
}
