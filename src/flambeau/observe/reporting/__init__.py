"""What a race report says of the program itself: its source, its names, the names of its operators, its fixes."""
